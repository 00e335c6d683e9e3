// The state of one block while it runs: its threads, warps, barriers and shared memory.
#pragma once
#include <vector_types.h>

#include <cstdint>
#include <vector>

#include "simt/host/async.h"
#include "simt/host/bank_conflicts.h"
#include "simt/host/barrier.h"
#include "simt/host/clocks.h"
#include "simt/host/collective.h"
#include "simt/host/context.h"
#include "simt/host/fences.h"
#include "simt/host/global_races.h"
#include "simt/host/options.h"
#include "simt/host/shared_memory.h"
#include "simt/host/site.h"
#include "simt/host/thread_set.h"

namespace simt::host {

struct Block;
struct Launch;

// Checked build: a thread that accesses memory more often without letting another one run is in an endless
// loop.
constexpr uint64_t kMaxAccessesPerVisit = 1 << 28;
constexpr size_t kStackBytes = 128 << 10;  // of a CUDA thread: its local memory

struct Thread {
  Context context;  // where it goes on
  Block* block = nullptr;
  uint3 index{};   // threadIdx
  int number = 0;  // within the block
  int lane = 0, warp = 0;
  const char* waits_in = "";  // while it waits: the operation and its line
  Site waits_at;
  char* stack = nullptr;
  uint32_t proxy_clock = 0;  // its writes up to this time are visible to the async proxy (wgmma, bulk copies)
  ThreadAsync async;
};

struct Warp {
  unsigned exists = 0, ready = 0, exited = 0;  // lanes; who is neither ready nor exited waits
  Collectives collectives;
  WarpBarriers barriers;
  WarpAsync async;
  SharedOps shared_ops;
};

// What fail() leaves for report_failure(): composing the report needs more stack than a thread may have left.
struct Failure {
  const Thread* thread = nullptr;  // nullptr: none
  Where at;
  char message[2000];
};

struct Block {
  const Launch* launch = nullptr;
  uint64_t number = 0;  // of the block in the grid
  uint3 index{};        // blockIdx
  int num_threads = 0, num_warps = 0, num_exited = 0;
  std::vector<Thread> threads;
  Warp warps[kMaxWarps];
  unsigned ready_warps = 0;  // those with a ready lane
  Thread* first_exited = nullptr;
  Barriers barriers;
  SharedMemory shared;
  Clocks clocks;
  FenceCache fence_cache;
  GlobalOrder global_order;
  BlockAsync async;
  uint64_t random_state = 1;
  uint64_t spins = 0;         // since a thread last got somewhere
  uint32_t visits = 0;        // of threads to waits and polls, for the time limit
  uint64_t accesses_end = 0;  // of the current visit, in terms of count[k_accesses]
  Context outside;            // of the pool's thread, to which an ended block returns
  uint64_t count[kNumStats] = {};
  Failure failure;

  bool checked() const { return clocks.on(); }
};

// The CUDA thread that runs on this OS thread; nullptr outside of kernels.  A module with such a variable
// takes its thread_locals out of a small common reserve: there are few of them here, and they are small.
extern __thread Thread* current __attribute__((tls_model("initial-exec")));

}  // namespace simt::host
