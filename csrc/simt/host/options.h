// What tests may set (configure()) and count (stats()).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace simt::host {

enum class Order : int { forward, reverse, random };  // of blocks, warps and threads

struct Options {
  Order order = Order::forward;
  uint64_t seed = 1;
  int preempt = 0;                   // checked build: every n-th access on average, another thread goes on
  int threads = 0;                   // of the pool; 0: as many as the machine has cores
  int time_limit = 600;              // seconds of one launch; 0: none
  int num_sms = 3;                   // what num_sms() tells launchers: small and odd
  size_t shared_limit = 227 * 1024;  // bytes a block may have
  bool uninitialised = true;         // reads of shared bytes that nobody wrote are errors
  bool bank_conflicts = false;       // checked build: counts those of ordinary shared loads and stores
};
extern Options options;

// Every counter that stats() returns, by name.
// clang-format off: it does not come to rest on this.
#define SIMT_STATS(X)                                                                 \
  X(launches) X(blocks) X(switches) X(warp_ops) X(accesses)                           \
  X(ldmatrix) X(ldmatrix_extra) X(stmatrix) X(stmatrix_extra) X(mma) X(wgmma)         \
  X(bulk_copies) X(shared_ops) X(shared_extra)
// clang-format on

enum Stat : int {
#define SIMT_STAT(name) k_##name,
  SIMT_STATS(SIMT_STAT)
#undef SIMT_STAT
      kNumStats
};
extern std::atomic<uint64_t> stats[kNumStats];  // blocks count for themselves (Block::count) and add up here

}  // namespace simt::host
