// mbarriers.  Their state is kept here; of their 8 bytes only who touches them when is looked at.
#include "simt/mbarrier.h"

#include "simt/host/block.h"
#include "simt/host/error.h"
#include "simt/host/scheduler.h"

namespace simt::host {

namespace {

constexpr uint32_t kMaxCount = (1u << 20) - 1;  // of arrivals, and of bytes

Mbarrier* find(Block& block, size_t offset) {
  for (Mbarrier& bar : block.async.mbarriers) {
    if (bar.alive && bar.offset == offset) return &bar;
  }
  return nullptr;
}

void end_phase_if_complete(Block& block, Mbarrier& bar) {
  if (bar.missing > 0 || bar.bytes != 0) return;
  ++bar.phase;
  bar.missing = bar.count;
  bar.completed = bar.arrived;
  wake(block, bar.waiting);
}

bool has_ended(const Mbarrier& bar, uint32_t parity) { return (bar.phase & 1) != (parity & 1); }

void expect(Mbarrier& bar, uint32_t bytes, Site at) {
  if (bytes > kMaxCount) fail(at, "mbarrier: %u bytes expected, at most 2^20 - 1 can be", bytes);
  bar.bytes += bytes;
  if (bar.bytes > kMaxCount)
    fail(at, "mbarrier: %ld bytes expected in one phase", static_cast<long>(bar.bytes));
}

}  // namespace

int num_waiting(const Mbarrier& bar) {
  int count = 0;
  for (const uint32_t lanes : bar.waiting.lanes) count += __builtin_popcount(lanes);
  return count;
}

Mbarrier& mbar_at(const uint64_t* p, Site at) {
  Block& block = *current->block;
  const size_t offset = shared_offset(p, at);
  Mbarrier* bar = find(block, offset);
  if (bar == nullptr) fail(at, "this is no initialised mbarrier: %s", block.shared.describe(offset).c_str());
  access_shared(p, 8, kRead, at);
  return *bar;
}

void mbar_init(uint64_t* p, int count, Site at) {
  Block& block = *current->block;
  const size_t offset = shared_offset(p, at);
  if (offset % 8 != 0) fail(at, "mbarrier: the address is not 8-byte aligned");
  if (count < 1 || static_cast<uint32_t>(count) > kMaxCount)
    fail(at, "mbarrier: a count of %d arrivals", count);
  if (find(block, offset) != nullptr) {
    fail(at, "mbarrier is initialised twice: %s", block.shared.describe(offset).c_str());
  }
  access_shared(p, 8, kWrite | kMbarrier, at);
  block.shared.mark_mbarrier(block, offset);
  std::vector<Mbarrier>& all = block.async.mbarriers;
  Mbarrier* bar = nullptr;
  for (Mbarrier& old : all) {
    if (!old.alive) bar = &old;
  }
  if (bar == nullptr) {
    if (all.size() == kMaxMbarriers) fail(at, "more than %d mbarriers in a block", kMaxMbarriers);
    bar = &all.emplace_back();
  }
  *bar = {};
  bar->offset = offset;
  bar->alive = true;
  bar->initialiser = current->number;
  bar->count = bar->missing = count;
}

void mbar_inval(uint64_t* p, Site at) {
  Mbarrier& bar = mbar_at(p, at);
  Block& block = *current->block;
  if (num_waiting(bar) > 0) fail(at, "mbarrier is invalidated while %d threads wait on it", num_waiting(bar));
  for (const Load& load : block.async.loads) {
    if (&block.async.mbarriers[static_cast<size_t>(load.mbarrier)] == &bar) {
      fail(at, "mbarrier is invalidated while a copy is to end on it");
    }
  }
  access_shared(p, 8, kWrite | kMbarrier, at);
  bar.alive = false;
}

void mbar_fence_init() {
  for (Mbarrier& bar : current->block->async.mbarriers) {
    if (bar.initialiser == current->number) bar.fenced = true;
  }
}

void mbar_count_arrival(Block& block, Mbarrier& bar, Site at) {
  if (--bar.missing < 0) fail(at, "mbarrier: more than %d arrivals in one phase", bar.count);
  end_phase_if_complete(block, bar);
}

void mbar_complete(Block& block, Mbarrier& bar, uint32_t bytes) {
  bar.bytes -= bytes;
  end_phase_if_complete(block, bar);
}

void mbar_arrive(uint64_t* p, uint32_t expected_bytes, Site at) {
  Mbarrier& bar = mbar_at(p, at);
  Block& block = *current->block;
  block.clocks.release(current->number, bar.arrived);
  expect(bar, expected_bytes, at);
  mbar_count_arrival(block, bar, at);
}

void mbar_expect_tx(uint64_t* p, uint32_t bytes, Site at) {
  Mbarrier& bar = mbar_at(p, at);
  expect(bar, bytes, at);
}

bool mbar_try_wait(uint64_t* p, uint32_t parity, Site at) {
  if (!has_ended(mbar_at(p, at), parity)) spin(at);
  const Mbarrier& bar = mbar_at(p, at);
  if (!has_ended(bar, parity)) return false;
  current->block->clocks.acquire(current->number, bar.completed);
  return true;
}

void mbar_wait(uint64_t* p, uint32_t parity, Site at) {
  for (;;) {
    Mbarrier& bar = mbar_at(p, at);
    if (has_ended(bar, parity)) {
      current->block->clocks.acquire(current->number, bar.completed);
      return;
    }
    bar.waiting.add(current->warp, current->lane);
    wait_in("mbar_wait", at);
  }
}

void cp_async_mbar_arrive(uint64_t* p, Site at) {
  Mbarrier& bar = mbar_at(p, at);
  Block& block = *current->block;
  Load arrival;
  arrival.is_arrival = true;
  arrival.mbarrier = static_cast<int>(&bar - block.async.mbarriers.data());
  if (block.checked())
    arrival.clock = block.clocks.tick(block.clocks.async_unit(kMbarrierUnit + arrival.mbarrier));
  arrival.thread = current->number;
  arrival.first_later_copy = current->async.copies_gone + static_cast<uint32_t>(current->async.copies.size());
  arrival.at = at;
  block.async.loads.push_back(arrival);
}

void fence_proxy_async() {
  mbar_fence_init();
  Clocks& clocks = current->block->clocks;
  if (!clocks.on()) return;
  current->proxy_clock = clocks.now(current->number);
  clocks.tick(current->number);  // what it writes from now on is not covered
}

}  // namespace simt::host
