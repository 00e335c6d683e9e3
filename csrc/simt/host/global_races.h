// Races on global memory, between the threads of a block and between blocks.
//
// Within a block, as for shared memory: barriers and __syncwarp order accesses.  Between blocks nothing does,
// but for atomics: what block X wrote before a __threadfence and an atomic after that is ordered before what
// block Y does after a later atomic of its own.  Which variable the atomics are on is not looked at.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simt/host/fences.h"
#include "simt/host/site.h"

namespace simt::host {

struct Block;

// Makes room for the shadow of all writable tensors; costs nothing until they are touched.
void prepare_race_checks(const std::vector<Fence>& fences);
void begin_race_checks();  // of one launch

void check_global_race(uintptr_t p, size_t bytes, unsigned flags, const Where& at);
// Around an atomic, so that whoever finds its result has a later time: blocks run on several cores.
void release_global(Block& block);  // before it
void acquire_global(Block& block);  // after it
void note_fence(Block& block);

// Per block.
struct GlobalOrder {
  uint32_t fences = 1;     // __threadfence calls so far
  uint32_t published = 0;  // of which the last one had an atomic after it
  uint64_t acquired = 0;   // the time of the block's last atomic; 0: none
};

}  // namespace simt::host
