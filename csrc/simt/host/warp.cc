// Shuffles, votes, matches and reductions.
#include "simt/warp.h"

#include <algorithm>

#include "simt/host/error.h"
#include "simt/host/scheduler.h"

namespace simt::host {
namespace {

constexpr const char* kShuffleNames[] = {"__shfl_sync", "__shfl_up_sync", "__shfl_down_sync",
                                         "__shfl_xor_sync"};

// The lane that `lane` reads; itself where the source would lie outside of its group of `width` lanes.
int source_lane(const ShuffleSlot& slot, int lane) {
  const int width = slot.width, first = lane / width * width;
  switch (slot.kind) {
    case Shuffle::index:
      return first + (slot.argument & (width - 1));
    case Shuffle::up:
      return lane - slot.argument >= first ? lane - slot.argument : lane;
    case Shuffle::down:
      return lane + slot.argument < first + width ? lane + slot.argument : lane;
    case Shuffle::exclusive_or:
      return (lane ^ slot.argument) < first + width ? lane ^ slot.argument : lane;
  }
  return lane;
}

template <class Slot>
Slot& slot_of(void* const* slots, int lane) {
  return *static_cast<Slot*>(slots[lane]);
}

struct Vote {
  bool predicate;
  unsigned result;
};
struct Match {
  uint64_t value;
  unsigned result;
};
struct Reduction32 {
  unsigned value;
  Reduce kind;
};

unsigned combine(Reduce kind, unsigned a, unsigned b) {
  switch (kind) {
    case Reduce::add:
      return a + b;
    case Reduce::min:
      return std::min(a, b);
    case Reduce::max:
      return std::max(a, b);
    case Reduce::min_signed:
      return static_cast<unsigned>(std::min(static_cast<int>(a), static_cast<int>(b)));
    case Reduce::max_signed:
      return static_cast<unsigned>(std::max(static_cast<int>(a), static_cast<int>(b)));
    case Reduce::and_:
      return a & b;
    case Reduce::or_:
      return a | b;
    case Reduce::xor_:
      return a ^ b;
  }
  return 0;
}

}  // namespace

void shuffle(unsigned mask, ShuffleSlot& slot, Site at) {
  if (slot.width < 1 || slot.width > 32 || (slot.width & (slot.width - 1)) != 0)
    fail(at, "shuffle: the width has to be a power of two up to 32, not %d", slot.width);
  warp_op(
      mask, kShuffleNames[static_cast<int>(slot.kind)], &slot,
      [](Block&, int, void* const* slots, unsigned all, Site site) {
        for_each_lane(all, [&](int lane) {
          auto& mine = slot_of<ShuffleSlot>(slots, lane);
          const int source = source_lane(mine, lane);
          if (source < 0 || source >= 32 || (all >> source & 1) == 0)
            fail(site, "shuffle: lane %d reads lane %d, which does not take part", lane, source);
          mine.out = slot_of<ShuffleSlot>(slots, source).in;
        });
      },
      at);
}

void sync_warp(unsigned mask, Site at) {
  warp_op(
      mask, "__syncwarp", nullptr,
      [](Block& block, int warp, void* const*, unsigned all, Site) {
        if (!block.clocks.on()) return;
        int threads[32], count = 0;
        for_each_lane(all, [&](int lane) { threads[count++] = warp * kLanes + lane; });
        block.clocks.join(threads, count);
      },
      at);
}

unsigned ballot(unsigned mask, bool predicate, Site at) {
  Vote vote{predicate, 0};
  warp_op(
      mask, "a vote", &vote,
      [](Block&, int, void* const* slots, unsigned all, Site) {
        unsigned result = 0;
        for_each_lane(all,
                      [&](int lane) { result |= slot_of<Vote>(slots, lane).predicate ? 1u << lane : 0u; });
        for_each_lane(all, [&](int lane) { slot_of<Vote>(slots, lane).result = result; });
      },
      at);
  return vote.result;
}

unsigned match_any(unsigned mask, uint64_t value, Site at) {
  Match match{value, 0};
  warp_op(
      mask, "__match_any_sync", &match,
      [](Block&, int, void* const* slots, unsigned all, Site) {
        for_each_lane(all, [&](int lane) {
          auto& mine = slot_of<Match>(slots, lane);
          for_each_lane(all, [&](int other) {
            if (slot_of<Match>(slots, other).value == mine.value) mine.result |= 1u << other;
          });
        });
      },
      at);
  return match.result;
}

unsigned match_all(unsigned mask, uint64_t value, int* all_equal, Site at) {
  Match match{value, 0};
  warp_op(
      mask, "__match_all_sync", &match,
      [](Block&, int, void* const* slots, unsigned all, Site) {
        const uint64_t first = slot_of<Match>(slots, __builtin_ctz(all)).value;
        bool equal = true;
        for_each_lane(all, [&](int lane) { equal &= slot_of<Match>(slots, lane).value == first; });
        for_each_lane(all, [&](int lane) { slot_of<Match>(slots, lane).result = equal ? all : 0u; });
      },
      at);
  *all_equal = match.result != 0;
  return match.result;
}

unsigned active_mask() {
  const Warp& warp = current->block->warps[current->warp];
  return warp.exists & ~warp.exited;
}

unsigned reduce(unsigned mask, unsigned value, Reduce kind, Site at) {
  Reduction32 reduction{value, kind};
  warp_op(
      mask, "__reduce_sync", &reduction,
      [](Block&, int, void* const* slots, unsigned all, Site) {
        const int first = __builtin_ctz(all);
        const auto [start, kind] = slot_of<Reduction32>(slots, first);
        unsigned result = start;
        const Reduce how = kind;
        for_each_lane(all & (all - 1), [&](int lane) {
          result = combine(how, result, slot_of<Reduction32>(slots, lane).value);
        });
        for_each_lane(all, [&](int lane) { slot_of<Reduction32>(slots, lane).value = result; });
      },
      at);
  return reduction.value;
}

}  // namespace simt::host
