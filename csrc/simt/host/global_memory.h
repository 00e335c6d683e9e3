// Global memory as a kernel may see it: the tensors that the op's binding named, to the element.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simt/host/fences.h"
#include "simt/host/shared_memory.h"
#include "simt/host/site.h"

namespace simt::host {

// Checks an access of the current thread: it lies in one stretch of elements of a named tensor, which is
// writable if it writes; in the checked build also that it does not race with another thread or block.
void access_global(const void* p, size_t bytes, unsigned flags, const Where& at);

// The tensors of the op that runs from now on.
void set_fences(std::vector<Fence> fences, bool checked);

}  // namespace simt::host
