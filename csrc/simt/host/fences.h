// The memory that one op may touch: its tensors, as strided views, to the element.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace simt::host {

// A tensor argument as a binding describes it.  Views may overlap.
struct View {
  const char* name;
  const void* data;
  int ndim;
  const int64_t *shape, *strides;  // in elements; strides are not negative
  size_t item_bytes;
  bool writable;
};

// A View, prepared for lookups: stretches of `run` contiguous bytes, repeated along `dims`.
class Fence {
 public:
  explicit Fence(const View& view);

  // The contiguous stretch that holds all of [p, p + bytes); false if none does.
  bool find(uintptr_t p, size_t bytes, uintptr_t* begin, uintptr_t* end) const;
  bool empty() const { return begin_ == end_; }
  uintptr_t begin() const { return begin_; }  // of the first element
  uintptr_t end() const { return end_; }      // behind the last
  bool writable() const { return writable_; }
  std::string describe() const;  // "'x' [3, 64]"
  // For an address where no element is: "12 bytes past the end of row 3 of 'x' [3, 64]".
  std::string explain(uintptr_t p, size_t bytes) const;

 private:
  struct Dim {
    uint64_t stride, size;  // in bytes; strides descend
    uint64_t inner;         // bytes from an index's first element to the end of its last
  };
  bool find_from(size_t dim, uint64_t offset, size_t bytes, uint64_t* run_offset) const;

  std::string name_;
  std::vector<int64_t> shape_;
  std::vector<Dim> dims_;
  uint64_t run_ = 0;
  uintptr_t begin_ = 0, end_ = 0;
  bool writable_ = false;
};

// Stretches that were found lately: kernels walk through a few tensors at once.
struct FenceCache {
  struct Entry {
    uintptr_t begin = 0, end = 0;
    bool writable = false;
  };
  static constexpr unsigned kEntries = 4;
  Entry entries[kEntries];
  unsigned next = 0;
  uint64_t version = 0;  // of the fences
};

}  // namespace simt::host
