#include "simt/host/run_block.h"

#include <algorithm>
#include <cstring>

#include "simt/host/bank_conflicts.h"
#include "simt/host/error.h"
#include "simt/host/memory.h"
#include "simt/host/scheduler.h"

namespace simt::host {
namespace {

constexpr size_t kStackGuard = 4 << 10;

unsigned low_bits(int n) { return n >= 32 ? ~0u : (1u << n) - 1; }

// Stacks start at different cache lines: equal local variables of all threads would otherwise compete for the
// same cache sets.
void prepare_thread(Thread& thread) {
  char* top = thread.stack + kStackBytes - static_cast<size_t>(thread.number % 61) * 64 - 64;
  prepare_context(thread.context, thread.stack, top, run_thread);
  thread.proxy_clock = 0;
  thread.async.reset();
}

}  // namespace

BlockRunner::BlockRunner() : block_(std::make_unique<Block>()) {}

BlockRunner::~BlockRunner() {
  for (Thread& thread : block_->threads) unmap_guarded(thread.stack, kStackBytes, kStackGuard);
}

void BlockRunner::prepare(const Launch& launch, bool checked) {
  Block& block = *block_;
  checked_ = checked;
  block.launch = &launch;
  block.num_threads = static_cast<int>(launch.block.x * launch.block.y * launch.block.z);
  block.num_warps = (block.num_threads + kLanes - 1) / kLanes;
  while (block.threads.size() < static_cast<size_t>(block.num_threads)) {
    block.threads.emplace_back();
    block.threads.back().stack = map_guarded(kStackBytes, kStackGuard);
  }
  for (int t = 0; t < block.num_threads; ++t) {
    Thread& thread = block.threads[static_cast<size_t>(t)];
    const auto n = static_cast<unsigned>(t);
    thread.block = &block;
    thread.number = t;
    thread.lane = t % kLanes;
    thread.warp = t / kLanes;
    thread.index = {n % launch.block.x, n / launch.block.x % launch.block.y,
                    n / launch.block.x / launch.block.y};
  }
  std::fill(std::begin(block.count), std::end(block.count), 0);
}

void BlockRunner::reset_block(uint64_t number) {
  Block& block = *block_;
  const dim3 grid = block.launch->grid;
  block.number = number;
  block.index = {static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
                 static_cast<unsigned>(number / grid.x / grid.y)};
  block.num_exited = 0;
  block.first_exited = nullptr;
  block.ready_warps = low_bits(block.num_warps);
  block.spins = 0;
  block.accesses_end = block.count[k_accesses] + kMaxAccessesPerVisit;
  block.failure.thread = nullptr;
  block.random_state = ((options.seed * 0x9E3779B97F4A7C15) ^ (number * 0xD1B54A32D192ED03)) | 1;
  block.global_order = {};
  block.barriers.reset();
  block.shared.reset(checked_);
  block.clocks.reset(block.num_threads, checked_);
  block.async.reset();
  for (int w = 0; w < block.num_warps; ++w) {
    Warp& warp = block.warps[w];
    warp.exists = warp.ready = low_bits(block.num_threads - w * kLanes);
    warp.exited = 0;
    warp.collectives.reset();
    warp.barriers.visits.clear();
    warp.async.reset();
  }
  for (int t = 0; t < block.num_threads; ++t) prepare_thread(block.threads[static_cast<size_t>(t)]);
}

void BlockRunner::run(uint64_t number) {
  Block& block = *block_;
  reset_block(number);
  size_t first = 0;
  if (options.order == Order::reverse) first = static_cast<size_t>(block.num_threads - 1);
  if (options.order == Order::random) first = random(block) % static_cast<size_t>(block.num_threads);
  current = &block.threads[first];
  switch_context(block.outside, current->context);
  current = nullptr;
  ++block.count[k_blocks];
  flush_bank_conflicts(block);
  if (report_failure(block)) return;
  block.shared.check_gaps(block);
  check_block_end(block);
}

void BlockRunner::add_stats() {
  for (int i = 0; i < kNumStats; ++i) stats[i].fetch_add(block_->count[i], std::memory_order_relaxed);
}

}  // namespace simt::host
