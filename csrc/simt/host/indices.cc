// What a thread asks about itself, and small checks that kernels call directly.
#include "simt/indices.h"

#include "simt/host/block.h"
#include "simt/host/error.h"
#include "simt/launch.h"
#include "simt/vector_access.h"

namespace simt::host {

uint3 thread_idx() { return current->index; }
uint3 block_idx() { return current->block->index; }
dim3 block_dim() { return current->block->launch->block; }
dim3 grid_dim() { return current->block->launch->grid; }
int lane() { return current->lane; }

void check_aligned(const void* p, size_t bytes, Site at) {
  if (reinterpret_cast<uintptr_t>(p) % bytes != 0)
    fail(at, "misaligned %zu-byte vector access at %p", bytes, p);
}

}  // namespace simt::host
