#include "simt/host/clocks.h"

#include <algorithm>

namespace simt::host {

void Clocks::reset(int threads, bool on) {
  on_ = on;
  if (!on) return;
  for (Row*& row : rows_) {
    if (row != nullptr && --row->users == 0) free_.push_back(row);
    row = nullptr;
  }
  const size_t units = static_cast<size_t>(threads) + kMaxAsyncUnits;
  if (units_ != static_cast<int>(units)) {  // rows of another length
    for (Row* row : free_) delete row;
    free_.clear();
  }
  threads_ = threads;
  units_ = static_cast<int>(units);
  now_.assign(units, 1);
  everyone_.assign(units, 0);
  rows_.assign(static_cast<size_t>(threads), nullptr);
}

Clocks::~Clocks() {
  for (Row* row : rows_)
    if (row != nullptr && --row->users == 0) delete row;
  for (Row* row : free_) delete row;
}

Clocks::Row* Clocks::new_row() {
  if (free_.empty()) return new Row{0, std::vector<uint32_t>(static_cast<size_t>(units_))};
  Row* row = free_.back();
  free_.pop_back();
  return row;
}

void Clocks::assign(int thread, Row* row) {
  Row*& mine = rows_[static_cast<size_t>(thread)];
  if (row == mine) return;
  if (mine != nullptr && --mine->users == 0) free_.push_back(mine);
  mine = row;
  if (row != nullptr) ++row->users;
}

void Clocks::join_all() {
  if (!on_) return;
  // All that one thread knew of asynchronous units, all know now; of each other they know everything.
  for (int t = 0; t < threads_; ++t) {
    const Row* row = rows_[static_cast<size_t>(t)];
    if (row == nullptr) continue;
    for (int u = threads_; u < units_; ++u)
      everyone_[static_cast<size_t>(u)] =
          std::max(everyone_[static_cast<size_t>(u)], row->time[static_cast<size_t>(u)]);
    assign(t, nullptr);
  }
  for (int t = 0; t < threads_; ++t) everyone_[static_cast<size_t>(t)] = now_[static_cast<size_t>(t)]++;
}

void Clocks::join(const int* threads, int count) {
  if (!on_ || count == 0) return;
  Row* const first = rows_[static_cast<size_t>(threads[0])];
  bool same = true;
  for (int i = 1; i < count; ++i) same &= rows_[static_cast<size_t>(threads[i])] == first;
  Row* row = first;
  if (!same || first == nullptr || first->users != count) {
    row = new_row();
    row->time = everyone_;
    const Row* merged = nullptr;  // neighbours mostly share a row
    for (int i = 0; i < count; ++i) {
      const Row* other = rows_[static_cast<size_t>(threads[i])];
      if (other == nullptr || other == merged) continue;
      for (size_t u = 0; u < row->time.size(); ++u) row->time[u] = std::max(row->time[u], other->time[u]);
      merged = other;
    }
    for (int i = 0; i < count; ++i) assign(threads[i], row);
  }
  for (int i = 0; i < count; ++i) {
    const auto t = static_cast<size_t>(threads[i]);
    row->time[t] = now_[t]++;
  }
}

void Clocks::release(int thread, Snapshot& into) {
  if (!on_) return;
  into.resize(static_cast<size_t>(units_), 0);
  for (int u = 0; u < units_; ++u)
    into[static_cast<size_t>(u)] = std::max(into[static_cast<size_t>(u)], known(thread, u));
  into[static_cast<size_t>(thread)] = now_[static_cast<size_t>(thread)]++;
}

void Clocks::acquire(int thread, const Snapshot& from) {
  if (!on_ || from.empty()) return;
  Row* const mine = rows_[static_cast<size_t>(thread)];
  Row* row = mine;
  if (mine == nullptr || mine->users > 1) {
    row = new_row();
    row->time = mine != nullptr ? mine->time : everyone_;
    assign(thread, row);
  }
  for (size_t u = 0; u < row->time.size(); ++u) row->time[u] = std::max(row->time[u], from[u]);
}

}  // namespace simt::host
