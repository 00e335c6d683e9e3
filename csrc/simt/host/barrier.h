// The state of __syncthreads and the named barriers of a block.
#pragma once
#include <vector>

#include "simt/host/clocks.h"
#include "simt/host/site.h"
#include "simt/host/thread_set.h"

namespace simt::host {

// The named barriers that lanes of a warp have come to and others have not yet: the instructions are
// .aligned, so all lanes come to the same ones in the same order (those that do not wait may be ahead).
struct WarpBarriers {
  struct Visit {
    Site at;
    int id;
    unsigned lanes;
  };
  std::vector<Visit> visits;
};

struct Warp;
struct Thread;
void check_warp_barriers(const Warp& warp, const Thread& leaving);

struct Barriers {
  struct Barrier {
    int expected = 0, arrived = 0;
    Site at;                    // where the first one came
    ThreadSet waiting, passed;  // those that wait; those that have arrived without waiting
    bool anyone_passed = false;
    Clocks::Snapshot released;  // by those, when they arrived
    int count = 0;              // of the predicates of a reduction
  };
  static constexpr int kCount = 16;
  Barrier barrier[kCount];
  int result = 0;  // of the last reduction

  void reset() {
    for (Barrier& b : barrier)
      if (b.arrived != 0) b = {};
  }
};

}  // namespace simt::host
