#include "simt/host/collective.h"

#include <cstring>

#include "simt/host/error.h"
#include "simt/host/scheduler.h"

namespace simt::host {
namespace {

bool same_op(const char* a, const char* b) { return a == b || strcmp(a, b) == 0; }

// Where the lanes of `mask` gather for `op`: at those who wait already, or a free entry.
Collectives::Pending& find_pending(Warp& warp, int lane, unsigned mask, const char* op, Site at) {
  Collectives::Pending* free = nullptr;
  Collectives& all = warp.collectives;
  for (int i = 0; i < all.used; ++i) {
    Collectives::Pending& p = all.pending[i];
    if (p.arrived == 0) {
      if (free == nullptr) free = &p;
      continue;
    }
    if (p.mask == mask) {
      if (!same_op(p.op, op) || !same_place(p.at, at))
        fail(at, "warp divergence: lane %d is in %s here, %d other lanes wait in %s at %s", lane, op,
             __builtin_popcount(p.arrived), p.op, to_string(p.at).c_str());
      return p;
    }
    if ((p.mask & mask) != 0)
      fail(at, "%s: masks overlap: 0x%08x here, 0x%08x at %s", op, mask, p.mask, to_string(p.at).c_str());
  }
  if (free == nullptr) free = &all.pending[all.used++];
  free->mask = mask;
  free->op = op;
  free->at = at;
  return *free;
}

}  // namespace

void warp_op(unsigned mask, const char* op, void* slot, Finish finish, Site at) {
  Thread& thread = *current;
  Block& block = *thread.block;
  Warp& warp = block.warps[thread.warp];
  const unsigned bit = 1u << thread.lane;
  if ((mask & bit) == 0) fail(at, "%s: lane %d is not in its own mask 0x%08x", op, thread.lane, mask);
  mask &= warp.exists;
  if ((mask & warp.exited) != 0)
    fail(at, "%s: the mask names lane %d, which has left the kernel", op, __builtin_ctz(mask & warp.exited));

  Collectives::Pending& first = warp.collectives.pending[0];
  const bool joins = first.arrived != 0 && first.mask == mask && first.op == op && first.at.line == at.line &&
                     first.at.file == at.file;  // almost always: the warp is together
  Collectives::Pending& p = joins ? first : find_pending(warp, thread.lane, mask, op, at);
  p.slots[thread.lane] = slot;
  p.arrived |= bit;
  if (p.arrived != mask) return wait_in(op, at);
  ++block.count[k_warp_ops];
  block.spins = 0;
  finish(block, thread.warp, p.slots, mask, at);
  p.arrived = 0;
  int& used = warp.collectives.used;
  while (used > 0 && warp.collectives.pending[used - 1].arrived == 0) --used;
  wake(block, thread.warp, mask & ~bit);
}

}  // namespace simt::host
