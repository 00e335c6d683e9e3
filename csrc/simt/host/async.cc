#include "simt/host/async.h"

#include <algorithm>

#include "simt/host/block.h"
#include "simt/host/error.h"
#include "simt/host/scheduler.h"

namespace simt::host {

void add_unit(const Block& block, Clocks::Snapshot& snapshot, int unit, uint32_t clock) {
  if (!block.checked()) return;
  snapshot.resize(static_cast<size_t>(block.clocks.threads() + kMaxAsyncUnits), 0);
  uint32_t& known = snapshot[static_cast<size_t>(unit)];
  known = std::max(known, clock);
}

bool land_one_copy(Block& block) {
  std::vector<Load>& loads = block.async.loads;
  if (loads.empty() || block.num_exited == block.num_threads) return false;
  size_t i = 0;
  if (options.order == Order::reverse) i = loads.size() - 1;
  if (options.order == Order::random) i = random(block) % loads.size();
  if (loads[i].is_arrival) {  // a thread's arrivals keep their order
    for (size_t k = 0; k < i; ++k) {
      if (loads[k].is_arrival && loads[k].thread == loads[i].thread) i = k;
    }
  }
  const Load load = loads[i];
  loads.erase(loads.begin() + static_cast<std::ptrdiff_t>(i));
  Mbarrier& bar = block.async.mbarriers[static_cast<size_t>(load.mbarrier)];
  const int unit = block.clocks.async_unit(kMbarrierUnit + load.mbarrier);
  add_unit(block, bar.arrived, unit, load.clock);
  if (load.is_arrival) {
    land_cp_async(block, block.threads[static_cast<size_t>(load.thread)], load.first_later_copy, unit,
                  load.clock);
    mbar_count_arrival(block, bar, load.at);
  } else {
    load_box(load.box);
    block.shared.land(block, load.box.shared, load.box.bytes, unit, load.clock);
    mbar_complete(block, bar, load.box.bytes);
  }
  return true;
}

void check_thread_end(Thread& thread) {
  check_stores_read(thread);
  check_wgmma_done(thread);
}

void check_block_end(Block& block) {
  for (const Load& load : block.async.loads) {
    if (load.is_arrival) continue;
    report(block, load.at, "the block ended with this copy in flight (nobody waited for it)");
    break;
  }
  check_warpgroups(block);
}

std::string async_unit_name(const Block& block, int i) {
  if (i >= kBulkStoreUnit) return "a bulk store of warp " + std::to_string(i - kBulkStoreUnit);
  if (i >= kWgmmaUnit) return "a wgmma of warp " + std::to_string(i - kWgmmaUnit);
  return "a copy on mbarrier " + block.shared.describe(block.async.mbarriers[static_cast<size_t>(i)].offset);
}

std::string waiting_details(const Block& block) {
  std::string text;
  for (const Mbarrier& bar : block.async.mbarriers) {
    if (!bar.alive || num_waiting(bar) == 0) continue;
    text += text.empty() ? "mbarrier " : "; mbarrier ";
    text += block.shared.describe(bar.offset) + ": " + std::to_string(num_waiting(bar)) +
            " threads wait, phase " + std::to_string(bar.phase) + " lacks " + std::to_string(bar.missing) +
            " of " + std::to_string(bar.count) + " arrivals";
    if (bar.bytes > 0) text += " and " + std::to_string(bar.bytes) + " bytes";
    if (bar.bytes < 0) text += " and has got " + std::to_string(-bar.bytes) + " bytes more than expected";
  }
  return text;
}

}  // namespace simt::host
