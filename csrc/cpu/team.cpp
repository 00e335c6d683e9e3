#include "cpu/team.h"

#include <sched.h>

namespace inferx::cpu {
namespace {

constexpr uint32_t kDismissed = 0xffffffff;  // a job's number; jobs stop short of it
constexpr uint32_t kClosed = 0xffffffff;     // in the place of the next item

// Watching costs nothing while every thread has a core; beside other processes it would keep one from them.
class Watch {
 public:
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

 private:
  static constexpr int kRounds = 4000;  // some 50 us
  int rounds_ = 0;
};

}  // namespace

void Team::run(Call call, const void* context, uint32_t count, uint32_t grain) {
  // First the job before is closed: a member that still reads its description while this one's takes its
  // place finds nothing to take.
  next_.store(uint64_t{job_} << 32 | kClosed, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  call_.store(call, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  count_.store(count, std::memory_order_relaxed);
  grain_.store(grain, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  if (++job_ == kDismissed) job_ = 1;
  next_.store(uint64_t{job_} << 32, std::memory_order_release);
  work_on(job_);
  Watch watch;
  while (done_.load(std::memory_order_acquire) != count) watch.pause();
}

void Team::work_on(uint32_t job) {
  const Call call = call_.load(std::memory_order_relaxed);
  const void* context = context_.load(std::memory_order_relaxed);
  const uint32_t count = count_.load(std::memory_order_relaxed);
  const uint32_t grain = grain_.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_acquire);
  uint64_t next = next_.load(std::memory_order_relaxed);
  while (next >> 32 == job && static_cast<uint32_t>(next) < count) {
    const auto first = static_cast<uint32_t>(next);
    // A part of what is left: the threads end together although nobody knows how long a piece will take.
    const uint32_t share = (count - first) / (2 * static_cast<uint32_t>(threads_));
    const uint32_t items = std::min(std::max(share, grain), count - first);
    if (!next_.compare_exchange_weak(next, next + items, std::memory_order_acq_rel)) continue;
    call(context, first, first + items);
    done_.fetch_add(items, std::memory_order_release);
    next = next_.load(std::memory_order_acquire);
  }
}

void Team::dismiss() { next_.store(uint64_t{kDismissed} << 32, std::memory_order_release); }

void Team::stand_by() {
  uint32_t seen = 0;
  Watch watch;
  for (;;) {
    const auto job = static_cast<uint32_t>(next_.load(std::memory_order_acquire) >> 32);
    if (job == kDismissed) return;
    if (job == seen) {
      watch.pause();
      continue;
    }
    work_on(job);
    seen = job;
    watch = Watch();
  }
}

}  // namespace inferx::cpu
