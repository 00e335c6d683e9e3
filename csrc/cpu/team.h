// A team of threads that share one job after another, handed over through memory that they watch.
//
// A job is [0, count).  The leader publishes it and takes pieces of it itself, as does every member that sees
// it, large pieces first; the leader goes on when all is done.  So nobody waits for a member that was not
// scheduled by the system, only for a piece that somebody has begun.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>

namespace inferx::cpu {

class Team {
 public:
  // Of the calling thread, while it leads one.
  static Team*& current() {
    static thread_local Team* team = nullptr;
    return team;
  }

  // Leads `threads` threads, this one included, through work().
  template <class Work>
  void lead(int threads, const Work& work) {
    threads_ = threads;
    current() = this;
    work();
    current() = nullptr;
    dismiss();
  }

  // A member: does its share of the leader's jobs until dismissed.
  void stand_by();

  template <class Body>
  void parallel_for(int64_t count, int64_t grain, const Body& body) {
    if (count < 2 * grain || count > kMostItems) {
      body(int64_t{0}, count);
      return;
    }
    current() = nullptr;  // a parallel_for inside of `body` is the caller's own affair
    const auto call = [](const void* context, int64_t begin, int64_t end) {
      (*static_cast<const Body*>(context))(begin, end);
    };
    run(call, &body, static_cast<uint32_t>(count), static_cast<uint32_t>(grain));
    current() = this;
  }

 private:
  using Call = void (*)(const void* context, int64_t begin, int64_t end);
  static constexpr int64_t kMostItems = int64_t{1} << 31;

  void run(Call call, const void* context, uint32_t count, uint32_t grain);
  void dismiss();
  void work_on(uint32_t job);

  int threads_ = 1;
  // The job's number in the upper half, the next item in the lower: a member that comes late finds another
  // number there and cannot take items of a job whose description it has not read.
  alignas(64) std::atomic<uint64_t> next_{0};
  // Of the job at hand.
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<uint32_t> count_{0}, grain_{1};
  alignas(64) std::atomic<uint32_t> done_{0};  // items
  uint32_t job_ = 0;                           // the leader's
};

}  // namespace inferx::cpu
