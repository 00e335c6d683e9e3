// Finding where a limit on counts or on weights falls in a row's order (falling logits, equal ones by rising
// id) without sorting the row.
//
// A histogram over bins that respect the order says in which bin the limit falls.  The bin's own members are
// then gathered and sorted.  When they are too many (heavy ties) the bin is cut into narrower ones, down to
// single tokens if need be: an order is 64 bits, of which each round settles 11.
// The bins are only a way of looking: no result depends on them.
#pragma once
#include "kernels/sampling/block.cuh"

namespace inferx::cuda {

constexpr int kBins = 2048;
constexpr int kMost = 2048;  // members that are sorted in one go
constexpr int kPerThread = kBins / kThreads;
static_assert(kBins == kMost, "one scan serves bins and members");

struct SelectScratch {
  uint32_t count[kBins];
  uint32_t low[kBins], high[kBins];  // of the sum of weights: shared atomics of 64 bits are slow
  uint64_t order[kMost];
  BlockScratch block;
  Mass before, own, total;
  int bin, filled;
};

// Where a limit falls: bins before `bin` lie before it with all they have, the limit is reached within `bin`.
struct Found {
  int bin;           // kBins: the limit is not reached
  Mass before, own;  // before: all there is where the limit is not reached
  uint64_t limit;
};

enum class By { count, weight };

// What Select::look has put, sorted, into the scratch's `order`.
struct Around {
  bool all;      // everything that stands before the limit; else the limit's surroundings only
  bool reached;  // else there is nothing to cut (and nothing in `order`, unless it is all)
  int count;
  uint64_t limit;   // what is left of it at order[0]
  uint64_t weight;  // of what stands before order[0]; of the row where the limit is not reached
};

struct Cut {
  int kept;
  uint64_t weight;
};

// Row has: x, n; bin_of(value), which does not fall along the order; weight(value); may_count(value), cheaper
// than and true where weight is > 0; and kCountsAll: every token is a member, else those with a weight.
template <class Row>
class Select {
 public:
  SIMT_DEV Select(const Row& row, SelectScratch& scratch) : row_(row), s_(scratch) {}

  // Looks for the place in the order that has a count or weight of `limit` before it.  limit 0: top_p of the
  // row's weight.  Without `weights` members are those that may_count, and none weighs anything.
  SIMT_DEV Around look(By by, uint64_t limit, double top_p, bool weights) {
    clear();
    histogram(weights);
    Found found = find(by, limit, top_p);
    const uint32_t through = found.before.count + found.own.count;
    Around around{through <= kMost, found.bin < kBins, 0, found.limit, found.before.weight};
    if (!around.all && !around.reached) return around;
    uint64_t first = 0, last = ~uint64_t{0};
    const int bin = found.bin, first_bin = around.all ? 0 : bin;
    if (!around.all) {
      if (found.own.count > kMost) narrow(by, weights, found, first, last);
      around.limit -= by == By::count ? found.before.count : found.before.weight;
      around.weight = found.before.weight;
    }
    around.count = gather([&](float value, uint64_t order) {
      const int own = row_.bin_of(value);
      return own >= first_bin && own <= bin && order >= first && order <= last && member(value, weights);
    });
    return around;
  }

  // How many of the `count` sorted members have less than `limit` before them, and what those weigh.
  SIMT_DEV Cut cut(By by, uint64_t limit, int count) {
    Mass sum{0, 0}, total;
#pragma unroll 1
    for (int k = 0; k < kPerThread; ++k) sum = sum + sorted_at(threadIdx.x * kPerThread + k, count);
    Mass before = block_scan(sum, s_.block, total), kept{0, 0};
#pragma unroll 1
    for (int k = 0; k < kPerThread; ++k) {
      const Mass own = sorted_at(threadIdx.x * kPerThread + k, count);
      if (own.count && (by == By::count ? before.count : before.weight) < limit) kept = kept + own;
      before = before + own;
    }
    block_scan(kept, s_.block, total);
    return {static_cast<int>(total.count), total.weight};
  }

  SIMT_DEV Mass sorted_at(int i, int count) const {
    if (i >= count) return {0, 0};
    return {1, row_.weight(order_value(s_.order[i]))};
  }

  SIMT_DEV void sort(int count) {
    const int size = next_power_of_two(count);
    for (int i = count + threadIdx.x; i < size; i += kThreads) s_.order[i] = ~uint64_t{0};
    __syncthreads();
    block_sort(s_.order, size);
  }

  // Gathers and sorts the orders of the row for which keep(value, order), kMost at most.  Returns how many.
  template <class Keep>
  SIMT_DEV int gather(const Keep& keep) {
    if (threadIdx.x == 0) s_.filled = 0;
    __syncthreads();
    constexpr int kAhead = sizeof(*row_.x) / 2;  // 16-bit logits come eight at a time: registers
    for_each<kAhead>(row_.x, 0, row_.n, threadIdx.x, kThreads, [&](float value, int id) {
      const uint64_t order = order_of(value, id);
      if (keep(value, order)) {
        const int at = atomicAdd(&s_.filled, 1);
        if (at < kMost) s_.order[at] = order;
      }
    });
    __syncthreads();
    const int count = min(s_.filled, kMost);
    sort(count);
    return count;
  }

 private:
  SIMT_DEV bool member(float value, bool weights) const {
    return Row::kCountsAll || (weights ? row_.weight(value) > 0 : row_.may_count(value));
  }

  SIMT_DEV void clear() {
    for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
      s_.count[bin] = 0;
      s_.low[bin] = 0;
      s_.high[bin] = 0;
    }
    __syncthreads();
  }

  SIMT_DEV void add(int bin, uint32_t count, uint64_t weight) {
    atomicAdd(&s_.count[bin], count);
    if (weight == 0) return;
    const uint32_t low = static_cast<uint32_t>(weight);
    const uint32_t old = atomicAdd(&s_.low[bin], low);
    const uint32_t high = static_cast<uint32_t>(weight >> 32) + (old + low < old);
    if (high) atomicAdd(&s_.high[bin], high);
  }

  SIMT_DEV void histogram(bool weights) {
    Mass last{0, 0};  // most of a row is in the last bin, which is summed in registers
    for_each<1>(row_.x, 0, row_.n, threadIdx.x, kThreads, [&](float value, int) {
      if (!row_.may_count(value)) return;
      const uint64_t weight = weights ? row_.weight(value) : 0;
      if (weights && weight == 0) return;
      const int bin = row_.bin_of(value);
      if (bin == kBins - 1) {
        last = last + Mass{1, weight};
      } else {
        add(bin, 1, weight);
      }
    });
    last.count = warp_reduce(last.count, [](uint32_t a, uint32_t b) { return a + b; });
    last.weight = warp_reduce(last.weight, [](uint64_t a, uint64_t b) { return a + b; });
    if (lane_id() == 0 && last.count > 0) add(kBins - 1, last.count, last.weight);
    __syncthreads();
  }

  SIMT_DEV Mass histogram_at(int bin) const {
    return {s_.count[bin], (static_cast<uint64_t>(s_.high[bin]) << 32) + s_.low[bin]};
  }

  // The bin of the histogram where the limit is reached.
  SIMT_DEV Found find(By by, uint64_t limit, double top_p) {
    Mass sum{0, 0};
#pragma unroll 1
    for (int k = 0; k < kPerThread; ++k) sum = sum + histogram_at(threadIdx.x * kPerThread + k);
    if (threadIdx.x == 0) s_.bin = kBins;
    Mass total;
    Mass before = block_scan(sum, s_.block, total);
    if (limit == 0) limit = mass_limit(top_p, static_cast<int64_t>(total.weight));
#pragma unroll 1
    for (int k = 0; k < kPerThread; ++k) {
      const int bin = threadIdx.x * kPerThread + k;
      const Mass own = histogram_at(bin), after = before + own;
      const uint64_t low = by == By::count ? before.count : before.weight;
      const uint64_t high = by == By::count ? after.count : after.weight;
      if (low < limit && limit <= high) {
        s_.bin = bin;
        s_.before = before;
        s_.own = own;
      }
      before = after;
    }
    __syncthreads();
    Found found{s_.bin, total, {0, 0}, limit};
    if (found.bin < kBins) {
      found.before = s_.before;
      found.own = s_.own;
    }
    __syncthreads();
    return found;
  }

  // Narrows [first, last] around the limit, within found.bin, until kMost members or fewer are left in it;
  // `found` becomes what stands before them.
  SIMT_DEV void narrow(By by, bool weights, Found& found, uint64_t& first, uint64_t& last) {
    uint64_t least = ~uint64_t{0}, most = 0;
    for_each<1>(row_.x, 0, row_.n, threadIdx.x, kThreads, [&](float value, int id) {
      if (row_.bin_of(value) != found.bin || !member(value, weights)) return;
      const uint64_t order = order_of(value, id);
      least = order < least ? order : least;
      most = order > most ? order : most;
    });
    first = block_reduce(least, [](uint64_t a, uint64_t b) { return a < b ? a : b; }, s_.block);
    last = block_reduce(most, [](uint64_t a, uint64_t b) { return a > b ? a : b; }, s_.block);
    while (found.own.count > kMost) {
      int shift = 0;
      while ((last - first) >> shift >= kBins) ++shift;
      clear();
      for_each<1>(row_.x, 0, row_.n, threadIdx.x, kThreads, [&](float value, int id) {
        const uint64_t order = order_of(value, id);
        if (order < first || order > last || !member(value, weights)) return;
        add(static_cast<int>((order - first) >> shift), 1, weights ? row_.weight(value) : 0);
      });
      __syncthreads();
      const uint64_t rest = found.limit - (by == By::count ? found.before.count : found.before.weight);
      const Found inner = find(by, rest, 1.0);
      found.before = found.before + inner.before;
      found.own = inner.own;
      first += static_cast<uint64_t>(inner.bin) << shift;
      const uint64_t end = first + (uint64_t{1} << shift) - 1;
      last = end < last ? end : last;
    }
  }

  const Row& row_;
  SelectScratch& s_;
};

}  // namespace inferx::cuda
