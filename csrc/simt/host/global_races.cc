#include "simt/host/global_races.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <unordered_map>

#include "simt/host/error.h"
#include "simt/host/memory.h"
#include "simt/host/scheduler.h"

namespace simt::host {
namespace {

// The last write and the last read of one byte.  Who: launch << 48 | (block + 1) << 16 | thread, with bit 15
// of the thread for an atomic; cells of earlier launches count as empty, so that nothing needs clearing.
struct Cell {
  uint64_t writer, reader;
  uint32_t write_clock, read_clock;
  uint32_t write_fences;  // GlobalOrder::fences of the writer's block at that time
};
constexpr uint64_t kAtomicBit = 0x8000, kThreadBits = 0x7FFF;
constexpr uint64_t kLaunches = 1 << 16;

struct Interval {
  uintptr_t begin, end;
  Cell* shadow;
};
std::vector<Interval> intervals;  // of all writable tensors, disjoint
Cell* shadow = nullptr;
size_t capacity = 0;  // cells
uint64_t launch_number = 0;

// What blocks have published by a fence and an atomic, of the launch that runs.
struct Release {
  uint32_t fences;
  uint64_t time;
};
std::mutex releases_mutex;
std::unordered_map<uint64_t, std::vector<Release>> releases;
std::atomic<uint64_t> time_now{0};

enum class Ordered { yes, no_fence, no };

// Whether what block `other` wrote after `fences` fences lies in the past of `block`.
Ordered ordered_before(const Block& block, uint64_t other, uint32_t fences) {
  if (block.global_order.acquired == 0) return Ordered::no;
  const std::lock_guard<std::mutex> lock(releases_mutex);
  const auto found = releases.find(other);
  if (found != releases.end()) {
    for (const Release& release : found->second)
      if (release.fences > fences && release.time < block.global_order.acquired) return Ordered::yes;
  }
  return Ordered::no_fence;
}

std::string unit_name(uint64_t who, uint64_t me) {
  const std::string thread = "thread " + std::to_string(who & kThreadBits);
  if (who >> 16 == me >> 16) return thread;
  return "block number " + std::to_string((who >> 16 & 0xFFFFFFFF) - 1) + " " + thread;
}

}  // namespace

void prepare_race_checks(const std::vector<Fence>& fences) {
  intervals.clear();
  for (const Fence& fence : fences)
    if (fence.writable() && !fence.empty()) intervals.push_back({fence.begin(), fence.end(), nullptr});
  std::sort(intervals.begin(), intervals.end(),
            [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> merged;
  for (const Interval& i : intervals) {
    if (!merged.empty() && i.begin <= merged.back().end)
      merged.back().end = std::max(merged.back().end, i.end);
    else
      merged.push_back(i);
  }
  intervals.swap(merged);
  size_t cells = 0;
  for (const Interval& i : intervals) cells += i.end - i.begin;
  if (cells > capacity) {
    if (shadow != nullptr) unmap(shadow, capacity * sizeof(Cell));
    shadow = nullptr;
    capacity = 0;
    const size_t room = std::max(cells * 2, size_t{16} << 20);
    shadow = static_cast<Cell*>(map_lazily(room * sizeof(Cell)));
    capacity = room;
  }
  Cell* next = shadow;
  for (Interval& i : intervals) {
    i.shadow = next;
    next += i.end - i.begin;
  }
}

void begin_race_checks() {
  releases.clear();
  time_now = 0;
  launch_number = (launch_number + 1) % kLaunches;
  if (launch_number == 0) {  // numbers start again: forget what has them
    launch_number = 1;
    if (shadow != nullptr) madvise(shadow, capacity * sizeof(Cell), MADV_DONTNEED);
  }
}

void note_fence(Block& block) { ++block.global_order.fences; }

void release_global(Block& block) {
  GlobalOrder& order = block.global_order;
  if (order.fences == order.published) return;
  order.published = order.fences;
  const std::lock_guard<std::mutex> lock(releases_mutex);
  releases[block.number].push_back({order.fences, ++time_now});
}

void acquire_global(Block& block) { block.global_order.acquired = ++time_now; }

void check_global_race(uintptr_t p, size_t bytes, unsigned flags, const Where& at) {
  Cell* cells = nullptr;
  for (const Interval& i : intervals)
    if (p >= i.begin && p + bytes <= i.end) cells = i.shadow + (p - i.begin);
  if (cells == nullptr) return;

  const Thread& thread = *current;
  Block& block = *thread.block;
  const bool write = (flags & kWrite) != 0, atomic = (flags & kAtomic) != 0;
  const uint64_t me = launch_number << 48 | (block.number + 1) << 16 | static_cast<uint64_t>(thread.number) |
                      (atomic ? kAtomicBit : 0);
  const uint32_t clock = block.clocks.now(thread.number);
  const char* verb = write ? "write" : "read";

  // Fails if the earlier access `who` is not known to come before this one.
  const auto check = [&](uint64_t who, uint32_t time, const uint32_t* fences) {
    if (who >> 48 != launch_number || (atomic && (who & kAtomicBit) != 0)) return;
    if (who >> 16 == me >> 16) {
      const int other = static_cast<int>(who & kThreadBits);
      if (other == thread.number || time <= block.clocks.known(thread.number, other)) return;
      fail(at, "data race on global memory: %s after a %s by %s with no barrier between", verb,
           fences != nullptr ? "write" : "read", unit_name(who, me).c_str());
    }
    const bool plain_write = fences != nullptr && (who & kAtomicBit) == 0;
    if (!plain_write && block.global_order.acquired != 0) return;
    const Ordered ordered =
        plain_write ? ordered_before(block, (who >> 16 & 0xFFFFFFFF) - 1, *fences) : Ordered::no;
    if (ordered == Ordered::yes) return;
    fail(at, "data race on global memory: %s after a %s by %s %s", verb, fences != nullptr ? "write" : "read",
         unit_name(who, me).c_str(),
         ordered == Ordered::no ? "with nothing that orders them"
                                : "with no __threadfence between that and its block's atomic");
  };

  for (size_t i = 0; i < bytes; ++i) {
    Cell& cell = cells[i];  // other blocks may be at it on other cores
    const uint64_t writer = __atomic_load_n(&cell.writer, __ATOMIC_RELAXED);
    const uint64_t reader = __atomic_load_n(&cell.reader, __ATOMIC_RELAXED);
    if (writer != me) {
      const uint32_t fences = cell.write_fences;
      check(writer, cell.write_clock, &fences);
    }
    if (write && reader != me) check(reader, cell.read_clock, nullptr);
    if (write) {
      __atomic_store_n(&cell.writer, me, __ATOMIC_RELAXED);
      cell.write_clock = clock;
      cell.write_fences = block.global_order.fences;
    } else {
      __atomic_store_n(&cell.reader, me, __ATOMIC_RELAXED);
      cell.read_clock = clock;
    }
  }
}

}  // namespace simt::host
