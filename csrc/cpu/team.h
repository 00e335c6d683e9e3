// A team of threads that share one job after another, handed over through memory that they watch.
//
// A job is [0, count), cut into one range a thread, so that a thread finds in its caches what it had there
// before, and can ask for what it will have next.  A thread takes pieces of its own range, then of the
// others'; the leader, who publishes jobs and works like the rest, goes on when all is done.  So nobody waits
// for a member that was not scheduled by the system, only for a piece that somebody has begun.
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
    start(threads);
    current() = this;
    work();
    current() = nullptr;
    dismiss();
  }

  // A member, 1 <= rank < threads: does its share of the leader's jobs until dismissed.
  void stand_by(int rank);

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

  // ---- What memory is to be read next.  Hints: they change no result. ---------------------------------

  // The next job that reads much will read `items` pieces of `item_bytes` from `data` on, cut into the ranges
  // of a job of that many items.  Threads that wait ask for the beginning of their part.
  void announce(const uint8_t* data, int64_t items, int64_t item_bytes) {
    data_.store(data, std::memory_order_relaxed);
    data_items_.store(items, std::memory_order_relaxed);
    item_bytes_.store(item_bytes, std::memory_order_relaxed);
  }

  struct Stretch {
    const uint8_t *begin = nullptr, *end = nullptr;
  };
  // Within the body of a job: the calling thread's part of what was announced, empty outside.
  static Stretch upcoming();
  // Within the body of a job that was called up to `end`: where the thread's range ends, if it goes on
  // behind.
  static int64_t range_end(int64_t end);

 private:
  using Call = void (*)(const void* context, int64_t begin, int64_t end);
  static constexpr int64_t kMostItems = int64_t{1} << 31;
  static constexpr int kMostRanges = 8;  // publishing a job writes each; more threads share them

  // The job's number in the upper half, the next item of the range in the lower: a member that comes late
  // finds another number there and cannot take items of a job whose description it has not read.
  struct alignas(64) Range {
    std::atomic<uint64_t> next{0};
  };

  void start(int threads);
  void run(Call call, const void* context, uint32_t count, uint32_t grain);
  void dismiss();
  void work_on(uint32_t job, int rank);
  uint32_t range_begin(uint32_t count, int range) const {
    return static_cast<uint32_t>(uint64_t{count} * range / ranges_);
  }
  Stretch upcoming_of(int rank) const;

  // Set before the first job; members look at them once they have seen one.
  int threads_ = 1, ranges_ = 1;
  Range range_[kMostRanges];
  alignas(64) std::atomic<uint32_t> number_{0};  // of the job at hand
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<uint32_t> count_{0}, grain_{1};
  std::atomic<const uint8_t*> data_{nullptr};
  std::atomic<int64_t> data_items_{0}, item_bytes_{0};
  alignas(64) std::atomic<uint32_t> done_{0};  // items
};

}  // namespace inferx::cpu
