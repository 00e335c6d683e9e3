// What the asynchronous features (cp.async, mbarriers, bulk copies, wgmma) keep per thread, warp and block,
// and where the executor asks them.
//
// They all are as late as they may be, and until then their targets hold NaN: data land at the wait that
// guarantees them, or, for copies that end on an mbarrier, when no thread of the block can go on without.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "simt/host/clocks.h"
#include "simt/host/site.h"
#include "simt/host/tensor_box.h"
#include "simt/host/thread_set.h"
#include "simt/mma.h"

namespace simt::host {

struct Block;
struct Thread;

// Asynchronous units of Clocks: who makes the accesses that happen behind the threads' backs.
constexpr int kMaxMbarriers = 64;
constexpr int kMbarrierUnit = 0;                        // + number of the mbarrier: the copies that end on it
constexpr int kWgmmaUnit = kMaxMbarriers;               // + warp: its wgmma, reading operands
constexpr int kBulkStoreUnit = kWgmmaUnit + kMaxWarps;  // + warp: its bulk stores, reading sources
static_assert(kBulkStoreUnit + kMaxWarps <= kMaxAsyncUnits, "Clocks has room for all units");

// ---- of a thread ----
struct CpAsync {
  void* dst;
  const void* src;
  int bytes, src_bytes;
  uint32_t group;
  int landed_by = -1;  // the unit of the mbarrier for which it landed early; and when
  uint32_t landed_at = 0;
};

struct BulkStore {
  Box box;
  uint32_t group, clock;
  bool read = false;  // the source has been read, into data
  std::vector<char> data;
  Site at;
};

struct ThreadAsync {
  std::vector<CpAsync> copies;
  std::vector<BulkStore> stores;
  uint32_t copy_group = 0, store_group = 0;  // those that the next ones belong to
  uint32_t copies_gone = 0;                  // how many came before copies[0]
  void reset() {
    copies.clear();
    stores.clear();
    copy_group = store_group = copies_gone = 0;
  }
};

// ---- of a warp ----
struct Wgmma {
  MmaType type;
  int n;
  bool a_in_registers, accumulate, n_major;
  uint64_t da, db;
  uint32_t group, clock;
  size_t accumulator;            // index in WarpAsync::accumulators
  const uint32_t* a_source[32];  // the lanes' registers
  uint32_t a[32][4];             // what was in them
  Site at;
};

// An accumulator array that wgmma has been given, one address a lane.
struct Accumulator {
  char* d[32];
  int bytes;                    // of a lane
  int in_flight = 0;            // products that are under way
  unsigned touched = 0;         // checked build: lanes that used it since the last fence
  std::vector<uint32_t> value;  // [32][bytes / 4], while in flight
};

struct WarpAsync {
  std::vector<Wgmma> products;  // in flight, in order
  std::vector<Accumulator> accumulators;
  uint32_t group = 0;
  uint32_t issued = 0;  // products in all
  bool fenced = false;
  void reset() {
    products.clear();
    accumulators.clear();
    group = issued = 0;
    fenced = false;
  }
};

// ---- of a block ----
struct Mbarrier {
  size_t offset;  // in shared memory
  bool alive;
  bool fenced;  // visible to copies
  int initialiser;
  int count, missing;  // arrivals of a phase
  int64_t bytes;       // still expected in this phase
  uint32_t phase;
  Clocks::Snapshot arrived, completed;  // what is published by arrivals so far, and by ended phases
  ThreadSet waiting;
};

// A copy that ends on an mbarrier: a box from global memory, or the arrival after a thread's cp.async.
struct Load {
  bool is_arrival = false;
  int mbarrier = 0;
  uint32_t clock = 0;  // of the mbarrier's unit
  Box box{};
  int thread = 0;                 // of an arrival
  uint32_t first_later_copy = 0;  // of that thread's cp.async, numbered from the launch's start
  Site at;
};

struct BlockAsync {
  std::vector<Mbarrier> mbarriers;
  std::vector<Load> loads;
  struct Warpgroup {  // the products its warps have issued: all the same
    struct Product {
      MmaType type;
      int n;
      bool accumulate, n_major;
      uint64_t da, db;
      Site at;
    };
    std::vector<Product> products;
  } warpgroups[kMaxWarps / 4];
  void reset() {
    mbarriers.clear();
    loads.clear();
    for (Warpgroup& group : warpgroups) group.products.clear();
  }
};

// ---- what the features share ----
int num_waiting(const Mbarrier& bar);
// The snapshot knows what asynchronous unit `unit` did up to `clock`.
void add_unit(const Block& block, Clocks::Snapshot& snapshot, int unit, uint32_t clock);
// cp.async of the thread, up to `end` by number, land as copies of an mbarrier's unit.
void land_cp_async(Block& block, Thread& thread, uint32_t end, int unit, uint32_t clock);
// The bytes of a copy, or an arrival, count for the mbarrier.
void mbar_complete(Block& block, Mbarrier& bar, uint32_t bytes);
void mbar_count_arrival(Block& block, Mbarrier& bar, Site at);
// The living mbarrier at p.
Mbarrier& mbar_at(const uint64_t* p, Site at);
// Issues a copy from global memory that ends on `bar`.
void issue_load(const Box& box, uint64_t* bar, Site at);
void issue_store(const Box& box, Site at);
void check_stores_read(Thread& thread);
void check_wgmma_done(Thread& thread);
void check_warpgroups(const Block& block);

// ---- what the executor asks ----
// No thread can go on (or one polls): lets one copy land.  False when none is under way.
bool land_one_copy(Block& block);
// A thread has returned from the kernel: what it started must have been waited for, else fail().
void check_thread_end(Thread& thread);
// All threads have returned: copies still under way are errors (report()).
void check_block_end(Block& block);
// Checked build: an access to the thread's own stack, where registers of wgmma may be under way.
void check_local_access(Thread& thread, const void* p, size_t bytes, const Where& at);
// "a copy on mbarrier 'full' [24 bytes] at byte 8": asynchronous unit i in messages.
std::string async_unit_name(const Block& block, int i);
// For the report of a deadlock: what the mbarriers that threads wait for still lack.
std::string waiting_details(const Block& block);

}  // namespace simt::host
