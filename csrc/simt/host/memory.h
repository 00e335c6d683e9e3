// Pages from the operating system.
#pragma once
#include <cstddef>

namespace simt::host {

// Zeroed memory that costs nothing until it is touched.  Never fails: throws std::bad_alloc.
void* map_lazily(size_t bytes);
void unmap(void* p, size_t bytes);
// The same between two stretches of `guard` bytes, at least a page, whose access is a fault.
char* map_guarded(size_t bytes, size_t guard);
void unmap_guarded(char* p, size_t bytes, size_t guard);

// Memory for a tensor: ends at a guard page (16-byte rounding apart) and is filled with 0xFF, NaN in every
// floating type.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes);
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_, mapped_;
  char* pages_;
  char* data_;
};

}  // namespace simt::host
