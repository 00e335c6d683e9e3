// Operations of a warp: each lane deposits a pointer, the last one to come computes for all.
#pragma once
#include <cstdint>

#include "simt/host/site.h"

namespace simt::host {

struct Block;

// Computes a collective for all lanes in `mask`: slots[lane] is what that lane deposited.  Runs once, in the
// lane that came last.  fail() ends the kernel with the collective's line.
using Finish = void (*)(Block& block, int warp, void* const* slots, unsigned mask, Site at);

// The current thread takes part in `op` among the lanes of `mask`; returns when it is done for all of them.
// Lanes in other operations, at other lines, with overlapping masks, or gone, are errors.
void warp_op(unsigned mask, const char* op, void* slot, Finish finish, Site at);

// The collectives that wait in one warp: more than one when the warp has split into groups.
struct Collectives {
  struct Pending {
    unsigned mask = 0, arrived = 0;
    const char* op = nullptr;
    Site at;
    void* slots[32];
  };
  Pending pending[32];  // their masks are disjoint
  int used = 0;         // of them, from the first; all others are free
  void reset() {
    for (int i = 0; i < used; ++i) pending[i].arrived = 0;
    used = 0;
  }
};

// Calls body(lane) for each lane of a mask, in ascending order.
template <class Body>
inline void for_each_lane(unsigned mask, const Body& body) {
  for (; mask != 0; mask &= mask - 1) body(__builtin_ctz(mask));
}

}  // namespace simt::host
