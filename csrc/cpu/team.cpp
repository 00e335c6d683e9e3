#include "cpu/team.h"

#include <sched.h>

namespace inferx::cpu {
namespace {

constexpr uint32_t kDismissed = 0xffffffff;  // a job's number; jobs stop short of it
constexpr uint32_t kClosed = 0xffffffff;     // in the place of the next item

// What the calling thread is doing.
struct Member {
  const Team* team = nullptr;
  int rank = 0;
  int64_t range_end = 0;
};
thread_local Member member;

// How a thread spends the time until somebody else is done: asking for memory that it will read, then
// watching.  That costs nothing while every thread has a core; beside other processes it would keep one
// from them.
class Wait {
 public:
  void round(Team::Stretch ahead) {
    if (ahead.begin != begin_) {
      begin_ = at_ = ahead.begin;
      end_ = std::min(ahead.end, ahead.begin + kAhead);
    }
    if (at_ < end_) {
      __builtin_prefetch(at_);
      __builtin_prefetch(at_ + 64);
      at_ += 128;
    } else {
      pause();
    }
  }
  void reset() { rounds_ = 0; }

 private:
  static constexpr int kRounds = 4000;                  // some 50 us
  static constexpr int64_t kAhead = int64_t{96} << 10;  // of a second-level cache that holds other things too

  void pause() {
    if (++rounds_ < kRounds) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#elif defined(__aarch64__)
      asm volatile("yield");
#endif
    } else {
      sched_yield();
    }
  }

  int rounds_ = 0;
  const uint8_t *begin_ = nullptr, *at_ = nullptr, *end_ = nullptr;
};

}  // namespace

void Team::start(int threads) {
  threads_ = threads;
  ranges_ = std::min(threads, kMostRanges);
}

void Team::run(Call call, const void* context, uint32_t count, uint32_t grain) {
  // First the job before is closed: a member that still reads its description while this one's takes its
  // place finds nothing to take.
  uint32_t job = number_.load(std::memory_order_relaxed);
  for (int r = 0; r < ranges_; ++r) {
    range_[r].next.store(uint64_t{job} << 32 | kClosed, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_release);
  call_.store(call, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  count_.store(count, std::memory_order_relaxed);
  grain_.store(grain, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  if (++job == kDismissed) job = 1;
  for (int r = 0; r < ranges_; ++r) range_[r].next.store(uint64_t{job} << 32, std::memory_order_release);
  number_.store(job, std::memory_order_release);
  work_on(job, 0);
  Wait wait;
  while (done_.load(std::memory_order_acquire) != count) wait.round(upcoming_of(0));
}

void Team::work_on(uint32_t job, int rank) {
  const Call call = call_.load(std::memory_order_relaxed);
  const void* context = context_.load(std::memory_order_relaxed);
  const uint32_t count = count_.load(std::memory_order_relaxed);
  const uint32_t grain = grain_.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  const auto per_range = static_cast<uint32_t>((threads_ + ranges_ - 1) / ranges_);
  uint32_t done = 0;
  member = {this, rank, 0};
  for (int i = 0; i < ranges_; ++i) {
    const int r = (rank + i) % ranges_;
    const uint32_t begin = range_begin(count, r), size = range_begin(count, r + 1) - begin;
    std::atomic<uint64_t>& shared = range_[r].next;
    uint64_t next = shared.load(std::memory_order_relaxed);
    while (next >> 32 == job && static_cast<uint32_t>(next) < size) {
      const auto first = static_cast<uint32_t>(next);
      // A part of what is left: the threads end together although nobody knows how long a piece will take.
      const uint32_t share = (size - first) / (2 * per_range);
      const uint32_t items = std::min(std::max(share, grain), size - first);
      if (!shared.compare_exchange_weak(next, next + items, std::memory_order_acq_rel)) continue;
      member.range_end = i == 0 ? begin + size : 0;
      call(context, begin + first, begin + first + items);
      done += items;
      next = shared.load(std::memory_order_acquire);
    }
  }
  member.team = nullptr;
  if (done > 0) done_.fetch_add(done, std::memory_order_release);
}

void Team::dismiss() { number_.store(kDismissed, std::memory_order_release); }

void Team::stand_by(int rank) {
  uint32_t seen = 0;
  Wait wait;
  for (;;) {
    const uint32_t job = number_.load(std::memory_order_acquire);
    if (job == kDismissed) return;
    if (job == seen) {
      wait.round(seen == 0 ? Stretch{} : upcoming_of(rank));
      continue;
    }
    work_on(job, rank);
    seen = job;
    wait.reset();
  }
}

Team::Stretch Team::upcoming_of(int rank) const {
  const uint8_t* data = data_.load(std::memory_order_relaxed);
  const auto items = static_cast<uint32_t>(data_items_.load(std::memory_order_relaxed));
  const int64_t bytes = item_bytes_.load(std::memory_order_relaxed);
  const int range = rank % ranges_;
  return {data + range_begin(items, range) * bytes, data + range_begin(items, range + 1) * bytes};
}

Team::Stretch Team::upcoming() { return member.team ? member.team->upcoming_of(member.rank) : Stretch{}; }

int64_t Team::range_end(int64_t end) { return std::max(end, member.team ? member.range_end : 0); }

}  // namespace inferx::cpu
