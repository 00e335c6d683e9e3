#include "simt/atomics.h"

#include "simt/host/block.h"
#include "simt/host/error.h"
#include "simt/host/global_memory.h"
#include "simt/host/global_races.h"

namespace simt::host {

void before_atomic(const void* p, size_t bytes, Site at) {
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0) fail(at, "misaligned %zu-byte atomic at %p", bytes, p);
  Block& block = *current->block;
  if (block.shared.contains(p)) return block.shared.access(block, p, bytes, kWrite | kAtomic, at);
  access_global(p, bytes, kWrite | kAtomic, at);
  if (block.checked()) release_global(block);
}

void after_atomic(const void* p) {
  Block& block = *current->block;
  if (block.checked() && !block.shared.contains(p)) acquire_global(block);
}

void thread_fence() {
  Block& block = *current->block;
  if (block.checked()) note_fence(block);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

}  // namespace simt::host
