#include "simt/host/scheduler.h"

#include <map>
#include <string>

#include "simt/host/error.h"
#include "simt/host/time_limit.h"
#include "simt/launch.h"

namespace simt::host {

__thread Thread* current __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

// Polls of a block's threads with nothing else happening; a preempted thread is late by some.
constexpr uint64_t kMaxSpins = 1 << 20, kMaxSpinsPreempted = 1 << 22;

int nth_bit(unsigned mask, unsigned n) {
  while (n-- > 0) mask &= mask - 1;
  return __builtin_ctz(mask);
}
int lowest(unsigned mask) { return __builtin_ctz(mask); }
int highest(unsigned mask) { return 31 - __builtin_clz(mask); }
unsigned below(int bit) { return (1u << bit) - 1; }
unsigned above(int bit) { return ~((2u << bit) - 1); }

// The ready thread to go on after `from`, or nullptr.  Forward: while the warp has a ready lane, its next
// one, else the next warp's first; reverse likewise downwards.  With `rotate` the next warp has its turn when
// this warp's last ready lane has had its own, so that a warp that polls does not keep out the others.
Thread* next_ready(Block& block, const Thread& from, bool rotate) {
  const unsigned warps = block.ready_warps;
  if (warps == 0) return nullptr;
  int warp, lane;
  if (options.order == Order::random) {
    warp = nth_bit(warps,
                   static_cast<unsigned>(random(block)) % static_cast<unsigned>(__builtin_popcount(warps)));
    const unsigned lanes = block.warps[warp].ready;
    lane = nth_bit(lanes,
                   static_cast<unsigned>(random(block)) % static_cast<unsigned>(__builtin_popcount(lanes)));
  } else {
    const bool up = options.order == Order::forward;
    const unsigned mine = block.warps[from.warp].ready;
    const unsigned rest = mine & (up ? above(from.lane) : below(from.lane));
    unsigned lanes = rest != 0 ? rest : mine;
    warp = from.warp;
    if (mine == 0 || (rotate && rest == 0)) {
      const unsigned ahead = warps & (up ? above(from.warp) : below(from.warp));
      const unsigned candidates = ahead != 0 ? ahead : warps;
      warp = up ? lowest(candidates) : highest(candidates);
      lanes = block.warps[warp].ready;
    }
    lane = up ? lowest(lanes) : highest(lanes);
  }
  return &block.threads[static_cast<size_t>(warp * kLanes + lane)];
}

void go_to(Thread& next) {
  Thread& from = *current;
  if (&next == &from) return;
  Block& block = *from.block;
  ++block.count[k_switches];
  block.accesses_end = block.count[k_accesses] + kMaxAccessesPerVisit;
  current = &next;
  switch_context(from.context, next.context);
}

[[noreturn]] void fail_deadlock(Block& block) {
  struct Group {
    int size = 0, first = 0;
  };
  std::map<std::string, Group> groups;
  for (int t = 0; t < block.num_threads; ++t) {
    const Thread& thread = block.threads[static_cast<size_t>(t)];
    const bool gone = block.warps[thread.warp].exited >> thread.lane & 1;
    const std::string what =
        gone ? "have left the kernel"
             : std::string("wait in ") + thread.waits_in + " at " + to_string(thread.waits_at);
    Group& group = groups[what];
    if (group.size++ == 0) group.first = t;
  }
  std::string text;
  Site place;
  for (const auto& [what, group] : groups) {
    text += (text.empty() ? "" : "; ") + std::to_string(group.size) + " threads " + what +
            " (first: thread " + std::to_string(group.first) + ")";
    const Thread& first = block.threads[static_cast<size_t>(group.first)];
    if (!(block.warps[first.warp].exited >> first.lane & 1)) {
      place = first.waits_at;
      current = &block.threads[static_cast<size_t>(group.first)];
    }
  }
  const std::string details = waiting_details(block);
  fail(place, "deadlock: no thread can go on: %s%s%s", text.c_str(), details.empty() ? "" : "; ",
       details.c_str());
}

// The current thread cannot go on.
void leave() {
  Thread& from = *current;
  Block& block = *from.block;
  for (;;) {
    if (Thread* next = next_ready(block, from, false)) return go_to(*next);
    if (land_one_copy(block)) continue;
    if (block.num_exited == block.num_threads) {
      current = nullptr;
      switch_context(from.context, block.outside);
    }
    fail_deadlock(block);
  }
}

void unready(Thread& thread) {
  Block& block = *thread.block;
  Warp& warp = block.warps[thread.warp];
  warp.ready &= ~(1u << thread.lane);
  if (warp.ready == 0) block.ready_warps &= ~(1u << thread.warp);
}

void exit_thread() {
  Thread& thread = *current;
  Block& block = *thread.block;
  check_thread_end(thread);
  for (const Barriers::Barrier& barrier : block.barriers.barrier) {
    if (barrier.arrived != 0 && barrier.expected == block.num_threads)
      fail(barrier.at, "barrier divergence: thread %d left the kernel while %d threads wait at this barrier",
           thread.number, barrier.arrived);
  }
  const Warp& warp = block.warps[thread.warp];
  check_warp_barriers(warp, thread);
  for (int i = 0; i < warp.collectives.used; ++i) {
    const Collectives::Pending& pending = warp.collectives.pending[i];
    if (pending.arrived != 0 && (pending.mask >> thread.lane & 1) != 0)
      fail(pending.at, "warp divergence: lane %d left the kernel while %d lanes wait in %s", thread.lane,
           __builtin_popcount(pending.arrived), pending.op);
  }
  unready(thread);
  block.warps[thread.warp].exited |= 1u << thread.lane;
  ++block.num_exited;
  block.spins = 0;
  if (block.first_exited == nullptr) block.first_exited = &thread;
  leave();
}

}  // namespace

void wait_in(const char* op, Site at) {
  Thread& thread = *current;
  thread.waits_in = op;
  thread.waits_at = at;
  thread.block->spins = 0;
  check_time(*thread.block, at);
  unready(thread);
  leave();
}

void wake(Block& block, int warp, unsigned lanes) {
  if (lanes == 0) return;
  block.warps[warp].ready |= lanes;
  block.ready_warps |= 1u << warp;
}

void wake(Block& block, ThreadSet& threads) {
  for (int w = 0; w < block.num_warps; ++w) wake(block, w, threads.lanes[w]);
  threads.clear();
}

void yield() {
  if (Thread* next = next_ready(*current->block, *current, true)) go_to(*next);
}

void spin(Site at) {
  Block& block = *current->block;
  if (land_one_copy(block)) block.spins = 0;
  if (++block.spins > (options.preempt != 0 ? kMaxSpinsPreempted : kMaxSpins))
    fail(at, "livelock: threads of this block poll without end; other blocks may not have run yet");
  if (failed()) fail(at, "another block failed");  // whose report is the one that stays
  check_time(block, at);
  yield();
}

uint64_t random(Block& block) {  // xorshift64
  uint64_t x = block.random_state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  return block.random_state = x;
}

void run_thread() {
  const Launch& launch = *current->block->launch;
  launch.body(launch.arguments);
  exit_thread();
  __builtin_trap();  // an exited thread is never switched to
}

}  // namespace simt::host
