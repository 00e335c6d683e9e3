// __syncthreads, its reductions, and named barriers.
#include "simt/barrier.h"

#include "simt/host/error.h"
#include "simt/host/scheduler.h"

namespace simt::host {
namespace {

// Who waits at the barrier knows of the past of all who came, up to where they came; and goes on.
// last: the current thread, if it waits too, else nullptr.
void complete(Block& block, Barriers::Barrier& barrier, const Thread* last) {
  if (barrier.expected == block.num_threads && !barrier.anyone_passed) {
    block.clocks.join_all();
  } else if (block.clocks.on()) {
    int members[kMaxThreads], count = 0;
    for (int w = 0; w < block.num_warps; ++w)
      for_each_lane(barrier.waiting.lanes[w], [&](int lane) { members[count++] = w * kLanes + lane; });
    if (last != nullptr) members[count++] = last->number;
    if (!barrier.anyone_passed) {
      block.clocks.join(members, count);
    } else {
      for (int i = 0; i < count; ++i) block.clocks.release(members[i], barrier.released);
      for (int i = 0; i < count; ++i) block.clocks.acquire(members[i], barrier.released);
      barrier.released.clear();
    }
  }
  wake(block, barrier.waiting);
  if (barrier.anyone_passed) barrier.passed.clear();
  barrier.anyone_passed = false;
  barrier.arrived = 0;
  barrier.count = 0;
  block.spins = 0;
}

// The current thread arrives; true: it goes on.
bool arrive(Block& block, Barriers::Barrier& barrier, bool wait) {
  const Thread& thread = *current;
  if (!wait) {
    barrier.passed.add(thread.warp, thread.lane);
    barrier.anyone_passed = true;
    block.clocks.release(thread.number, barrier.released);
  }
  if (++barrier.arrived == barrier.expected) {
    complete(block, barrier, wait ? &thread : nullptr);
    return true;
  }
  if (wait) barrier.waiting.add(thread.warp, thread.lane);
  return !wait;
}

void check_all_there(const Block& block, Site at) {
  if (block.first_exited != nullptr)
    fail(at, "barrier divergence: thread %d had left the kernel before thread %d came to this barrier",
         block.first_exited->number, current->number);
}

void barrier_of_block(Block& block, Site at) {
  Barriers::Barrier& barrier = block.barriers.barrier[0];
  check_all_there(block, at);
  if (barrier.arrived == 0) {
    barrier.at = at;
    barrier.expected = block.num_threads;
  } else if (!same_place(barrier.at, at)) {
    fail(at, "barrier divergence: thread %d is at this barrier, %d threads wait at %s", current->number,
         barrier.arrived, to_string(barrier.at).c_str());
  }
  if (!arrive(block, barrier, true)) wait_in("__syncthreads", at);
}

// Lanes of one warp come to the same named barriers in the same order.
void visit_in_warp(Warp& warp, const Thread& thread, int id, Site at) {
  const unsigned bit = 1u << thread.lane;
  std::vector<WarpBarriers::Visit>& visits = warp.barriers.visits;
  size_t i = 0;
  while (i < visits.size() && (visits[i].lanes & bit) != 0) ++i;
  if (i == visits.size()) {
    if (warp.exited != 0)
      fail(at, "warp divergence: lane %d is at named barrier %d, lane %d has left the kernel", thread.lane,
           id, __builtin_ctz(warp.exited));
    visits.push_back({at, id, 0});
  }
  WarpBarriers::Visit& visit = visits[i];
  if (visit.id != id || !same_place(visit.at, at))
    fail(at, "warp divergence: lane %d is at named barrier %d here, %d lanes of its warp at %d at %s",
         thread.lane, id, __builtin_popcount(visit.lanes), visit.id, to_string(visit.at).c_str());
  visit.lanes |= bit;
  if (visit.lanes == warp.exists) visits.erase(visits.begin());  // the first: nobody is further than this
}

}  // namespace

void check_warp_barriers(const Warp& warp, const Thread& leaving) {
  for (const WarpBarriers::Visit& visit : warp.barriers.visits) {
    if ((visit.lanes >> leaving.lane & 1) == 0)
      fail(visit.at,
           "warp divergence: lane %d left the kernel, %d lanes of its warp came to named barrier %d",
           leaving.lane, __builtin_popcount(visit.lanes), visit.id);
  }
}

void barrier(Site at) { barrier_of_block(*current->block, at); }

int barrier_reduce(Reduction reduction, bool value, Site at) {
  Block& block = *current->block;
  Barriers& barriers = block.barriers;
  barriers.barrier[0].count += value;
  // Every thread reads the result before it comes to the next reduction, whose last thread overwrites it.
  if (barriers.barrier[0].arrived + 1 == block.num_threads) barriers.result = barriers.barrier[0].count;
  barrier_of_block(block, at);
  switch (reduction) {
    case Reduction::count:
      return barriers.result;
    case Reduction::all:
      return barriers.result == block.num_threads;
    case Reduction::any:
      return barriers.result != 0;
  }
  return 0;
}

void named_barrier(int id, int threads, bool wait, Site at) {
  Block& block = *current->block;
  const Thread& thread = *current;
  if (id < 0 || id >= Barriers::kCount || threads <= 0 || threads % kLanes != 0)
    fail(at, "named barrier: id %d (0 to 15), %d threads (whole warps)", id, threads);
  if (threads > block.num_threads)
    fail(at, "named barrier %d: %d threads of a block of %d", id, threads, block.num_threads);
  if (threads == block.num_threads && wait) check_all_there(block, at);
  Barriers::Barrier& barrier = block.barriers.barrier[id];
  if (barrier.arrived == 0) {
    barrier.at = at;
    barrier.expected = threads;
  } else if (barrier.expected != threads) {
    fail(at, "barrier divergence: named barrier %d is for %d threads here, for %d at %s", id, threads,
         barrier.expected, to_string(barrier.at).c_str());
  }
  if (barrier.anyone_passed && barrier.passed.has(thread.warp, thread.lane))
    fail(at, "named barrier %d: thread %d arrives twice in one phase", id, thread.number);
  visit_in_warp(block.warps[thread.warp], thread, id, at);
  if (!arrive(block, barrier, wait)) wait_in("named_barrier", at);
}

}  // namespace simt::host
