// Memory of the calling thread that its next call uses again, up to a size worth keeping.
#pragma once
#include <cstdint>
#include <memory>
#include <new>

namespace inferx::cpu {

class Scratch {
 public:
  static constexpr int64_t kKept = int64_t{16} << 20;  // floats: 64 MB

  // `count` floats, 64-byte aligned, whatever they held before.
  float* floats(int64_t count) {
    if (count > size_) {
      memory_.reset();  // first, so that the two are never held at once
      size_ = 0;
      memory_.reset(static_cast<float*>(::operator new(count * sizeof(float), std::align_val_t{64})));
      size_ = count;
    }
    return memory_.get();
  }
  void trim() {
    if (size_ > kKept) {
      memory_.reset();
      size_ = 0;
    }
  }

 private:
  struct Free {
    void operator()(float* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Free> memory_;
  int64_t size_ = 0;
};

// One for all ops: none that uses it calls another.
inline Scratch& thread_scratch() {
  static thread_local Scratch scratch;
  return scratch;
}

}  // namespace inferx::cpu
