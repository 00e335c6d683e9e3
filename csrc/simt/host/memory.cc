#include "simt/host/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

namespace simt::host {
namespace {

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
size_t page() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

void* map(size_t bytes, int protection) {
  void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  return p;
}

}  // namespace

void* map_lazily(size_t bytes) { return map(bytes, PROT_READ | PROT_WRITE); }

void unmap(void* p, size_t bytes) { munmap(p, bytes); }

char* map_guarded(size_t bytes, size_t guard) {
  guard = round_up(guard, page());
  bytes = round_up(bytes, page());
  char* p = static_cast<char*>(map(bytes + 2 * guard, PROT_NONE)) + guard;
  if (mprotect(p, bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
  return p;
}

void unmap_guarded(char* p, size_t bytes, size_t guard) {
  guard = round_up(guard, page());
  munmap(p - guard, round_up(bytes, page()) + 2 * guard);
}

GuardedBuffer::GuardedBuffer(size_t bytes)
    : bytes_(bytes), mapped_(round_up(bytes + 1, page())), pages_(map_guarded(mapped_, page())) {
  memset(pages_, 0xFF, mapped_);
  data_ = pages_ + mapped_ - round_up(bytes, 16);
}

GuardedBuffer::~GuardedBuffer() { unmap_guarded(pages_, mapped_, page()); }

}  // namespace simt::host
