// Vector clocks: what each thread of a block knows of the others' past.  Two accesses race when neither is
// in what the other's thread knows.
#pragma once
#include <cstdint>
#include <vector>

namespace simt::host {

// Besides the threads, asynchronous units (the copies that complete on one mbarrier, a warp's wgmma) have
// clocks.
constexpr int kMaxAsyncUnits = 160;

class Clocks {
 public:
  // What a release has published: one time per unit.
  using Snapshot = std::vector<uint32_t>;

  Clocks() = default;
  Clocks(const Clocks&) = delete;
  Clocks& operator=(const Clocks&) = delete;
  ~Clocks();

  // Off: everything below does nothing (the fast build).
  void reset(int threads, bool on);
  bool on() const { return on_; }
  int threads() const { return threads_; }
  int async_unit(int i) const { return threads_ + i; }  // the number of asynchronous unit i
  bool is_thread(int unit) const { return unit < threads_; }

  uint32_t now(int unit) const { return now_[unit]; }
  uint32_t tick(int unit) { return ++now_[unit]; }
  // Up to which of its times `thread` knows what `unit` did.
  uint32_t known(int thread, int unit) const {
    const uint32_t all = everyone_[unit];
    const Row* row = rows_[thread];
    return row == nullptr || all > row->time[unit] ? all : row->time[unit];
  }

  void join_all();                           // a barrier of the whole block
  void join(const int* threads, int count);  // a barrier of some threads
  // One-sided: what `thread` has done and knows goes into the snapshot; and out of it, into what it knows.
  void release(int thread, Snapshot& into);
  void acquire(int thread, const Snapshot& from);

 private:
  struct Row {  // shared by the threads that know the same
    int users;
    std::vector<uint32_t> time;
  };
  Row* new_row();
  void assign(int thread, Row* row);

  bool on_ = false;
  int threads_ = 0, units_ = 0;
  std::vector<uint32_t> now_, everyone_;
  std::vector<Row*> rows_;  // nullptr: no more than everyone
  std::vector<Row*> free_;
};

}  // namespace simt::host
