// One CTA a row.  Passes over the row's logits (each 28 us for 256 rows of 131072 floats at 4.8 TB/s, half
// that for 16-bit logits; everything else is small):
//   greedy                           1  maximum
//   plain or min_p                   2  maximum, sums of weights by runs of ids
//   top_k up to 1024, usual top_p    3  maximum, histogram, gather what is left (2048 tokens or fewer)
//   a top_p that leaves more         4  maximum, histogram, gather the bin that is cut, sums
// Large top_k with top_p needs one gather more; heavy ties add rounds (select.cuh).  So the floor of the
// target shape is 84 us for usual options, 112 us for flat rows.
#include "kernels/sampling.h"
#include "kernels/sampling/select.cuh"

namespace inferx::cuda {
namespace {

constexpr int kFew = kMost / 2;  // up to this top_k the candidates are found by counting alone

struct SampleScratch {
  SelectScratch select;
  uint64_t segment[kWarps];
};

template <class T>
struct SampleRow {
  static constexpr bool kCountsAll = false;

  const T* x;
  int n;
  float max, scale, bins_per;
  uint64_t least;

  SIMT_DEV float z(float value) const { return (value - max) * scale; }
  SIMT_DEV int bin_of(float value) const {
    const float bin = -z(value) * bins_per;
    return bin < kBins - 1 ? static_cast<int>(bin) : kBins - 1;
  }
  SIMT_DEV uint64_t weight(float value) const {
    const uint64_t weight = weight_of(z(value));
    return weight >= least ? weight : 0;
  }
  // Whether a histogram of counts alone takes it in: the few below `least` come last and weigh nothing.
  SIMT_DEV bool may_count(float value) const { return z(value) >= kLeastZ; }
};

// A row's options.  They are read again where they are used: registers are scarcer than constant memory.
SIMT_DEV int top_k_of(const SampleParams& p) {
  const int top_k = p.top_k ? p.top_k[blockIdx.x] : 0;
  return top_k > 0 && top_k < p.num_ids ? top_k : 0;
}
SIMT_DEV double top_p_of(const SampleParams& p) { return p.top_p ? clamp_top_p(p.top_p[blockIdx.x]) : 1.0; }
SIMT_DEV uint64_t target_of(const SampleParams& p, uint64_t total) {
  const auto at = [](const int64_t* values) { return values ? values[blockIdx.x] : 0; };
  const uint64_t random = token_bits(at(p.seed), at(p.step), static_cast<uint32_t>(at(p.index)));
  return draw_target(random, static_cast<int64_t>(total));
}

struct RowStats {
  uint64_t best;   // the order of the maximum among the ids below num_ids
  float lowest;    // the least that is not -inf, +inf where there is none
  bool nan, some;  // a NaN anywhere; anything but -inf anywhere
};

template <class T>
SIMT_DEV RowStats row_stats(const T* x, int num_ids, int vocab, BlockScratch& scratch) {
  float best = -INFINITY, lowest = INFINITY;
  int id = 0;
  bool nan = false, some = false;
  for_each<4>(x, 0, num_ids, threadIdx.x, kThreads, [&](float value, int i) {
    nan |= value != value;
    if (value > best) {
      best = value;
      id = i;
    }
    if (value > -INFINITY) lowest = fminf(lowest, value);
  });
  for_each<1>(x, num_ids, vocab, threadIdx.x, kThreads, [&](float value, int) {
    nan |= value != value;
    some |= value > -INFINITY;
  });
  const auto least = [](uint64_t a, uint64_t b) { return a < b ? a : b; };
  RowStats stats;
  stats.best = block_reduce(order_of(best, id), least, scratch);
  stats.lowest = value_of(static_cast<uint32_t>(block_reduce(key_of(lowest), least, scratch)));
  stats.nan = __syncthreads_or(nan);
  stats.some = __syncthreads_or(some || best > -INFINITY);
  return stats;
}

// The token of id order whose share of the kept weights holds the random number.  Runs of ids are summed by a
// warp each; the run that holds it is split in the same way, until a thread has one id.
template <class T>
SIMT_DEV void draw(const SampleRow<T>& row, uint64_t end_order, const SampleParams& p, SampleScratch& s) {
  const auto weight_at = [&](float value, int id) -> uint64_t {
    const uint64_t weight = row.weight(value);
    return order_of(value, id) < end_order ? weight : 0;
  };
  const int warp = threadIdx.x / 32, lane = lane_id();
  int begin = 0, end = row.n;
  uint64_t target = 0;
  bool known = false;
  while (end - begin > kThreads) {
    // A multiple of a warp's accesses, so that runs begin where the row's alignment is.
    const int run = (end - begin + kWarps * 512 - 1) / (kWarps * 512) * 512;
    const int from = min(begin + warp * run, end), to = min(from + run, end);
    uint64_t sum = 0;
    for_each<1>(row.x, from, to, lane, 32, [&](float value, int id) { sum += weight_at(value, id); });
    sum = warp_reduce(sum, [](uint64_t a, uint64_t b) { return a + b; });
    if (lane == 0) s.segment[warp] = sum;
    __syncthreads();
    if (!known) {
      uint64_t total = 0;
#pragma unroll 1
      for (int w = 0; w < kWarps; ++w) total += s.segment[w];
      target = target_of(p, total);
      known = true;
    }
    int chosen = 0;
    while (chosen < kWarps - 1 && target >= s.segment[chosen]) target -= s.segment[chosen++];
    __syncthreads();
    begin += chosen * run;
    end = min(begin + run, end);
  }
  const int id = begin + threadIdx.x;
  const uint64_t own = id < end ? weight_at(to_float(row.x[id]), id) : 0;
  Mass total;
  const uint64_t before = block_scan({0, own}, s.select.block, total).weight;
  if (!known) target = target_of(p, total.weight);
  if (before <= target && target < before + own) p.token_ids[blockIdx.x] = id;
}

// The same for `count` sorted candidates, of which those are kept that have less than `limit` before them.
template <class T>
SIMT_DEV void draw_from_few(const SampleRow<T>& row, Select<SampleRow<T>>& select, SelectScratch& s,
                            int count, uint64_t limit, const SampleParams& p) {
  count = select.cut(By::weight, limit, count).kept;
  // By id from here on: the halves of the orders change places.
  for (int i = threadIdx.x; i < count; i += kThreads) s.order[i] = s.order[i] << 32 | s.order[i] >> 32;
  __syncthreads();
  select.sort(count);
  const auto weight_at = [&](int i) -> uint64_t {
    return i < count ? row.weight(order_value(s.order[i] << 32)) : 0;
  };
  uint64_t sum = 0;
#pragma unroll 1
  for (int k = 0; k < kPerThread; ++k) sum += weight_at(threadIdx.x * kPerThread + k);
  Mass total;
  uint64_t before = block_scan({0, sum}, s.block, total).weight;
  const uint64_t target = target_of(p, total.weight);
#pragma unroll 1
  for (int k = 0; k < kPerThread; ++k) {
    const int i = threadIdx.x * kPerThread + k;
    const uint64_t after = before + weight_at(i);
    if (before <= target && target < after) {
      p.token_ids[blockIdx.x] = static_cast<int64_t>(s.order[i] >> 32);
    }
    before = after;
  }
}

// The weight that top_p leaves of the first top_k (0: all) of `count` sorted candidates.
template <class T>
SIMT_DEV uint64_t limit_of_few(Select<SampleRow<T>>& select, SelectScratch& s, int count,
                               const SampleParams& p) {
  const int top_k = top_k_of(p);
  count = top_k > 0 ? min(count, top_k) : count;
  Mass total, own{0, 0};
#pragma unroll 1
  for (int k = 0; k < kPerThread; ++k) own = own + select.sorted_at(threadIdx.x * kPerThread + k, count);
  block_scan(own, s.block, total);
  const double top_p = top_p_of(p);
  return top_p < 1 ? mass_limit(top_p, static_cast<int64_t>(total.weight)) : total.weight;
}

// top_k, then top_p.  Draws at once where few tokens are left, and says so by 0; else returns where in the
// order the rest begins.
template <class T>
SIMT_DEV uint64_t filter(const SampleRow<T>& row, const SampleParams& p, SampleScratch& s) {
  Select<SampleRow<T>> select(row, s.select);
  By by = top_k_of(p) > 0 ? By::count : By::weight;
  uint64_t limit = top_k_of(p);
  // A small top_k is found by counting alone, unless many are equal.
  bool weights = limit == 0 || limit > kFew;
  for (;;) {
    const Around around = select.look(by, limit, top_p_of(p), weights);
    if (around.all) {
      const uint64_t left = by == By::weight ? around.limit : limit_of_few(select, s.select, around.count, p);
      draw_from_few(row, select, s.select, around.count, left, p);
      return 0;
    }
    if (!weights) {
      weights = true;
      continue;
    }
    uint64_t end = ~uint64_t{0}, weight = around.weight;
    if (around.reached) {
      const Cut cut = select.cut(by, around.limit, around.count);
      // The last one kept and all before it: orders rise by at least one.
      end = s.select.order[cut.kept - 1] + 1;
      weight += cut.weight;
    }
    if (by == By::weight || top_p_of(p) == 1.0) return end;
    by = By::weight;
    limit = mass_limit(top_p_of(p), static_cast<int64_t>(weight));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) sample_tokens_kernel(const __grid_constant__ SampleParams p) {
  SHARED(SampleScratch, scratch, [1]);
  SampleScratch& s = scratch[0];
  const int64_t r = blockIdx.x;
  const T* x = static_cast<const T*>(p.logits.data) + r * p.logits.row_stride;
  const int n = static_cast<int>(p.num_ids);
  const RowStats stats = row_stats(x, n, static_cast<int>(p.logits.vocab), s.select.block);
  const float max = order_value(stats.best);
  const int32_t status = stats.nan          ? kNan
                         : !stats.some      ? kAllMinusInf
                         : max == -INFINITY ? kNoLegalToken
                                            : kOk;
  const float temperature = p.temperature ? p.temperature[r] : 1.0f;
  const bool greedy = !(temperature > 0) || max == INFINITY;
  if (threadIdx.x == 0) p.status[r] = status;
  if (status != kOk || greedy) {
    if (threadIdx.x == 0) p.token_ids[r] = status == kOk ? order_id(stats.best) : 0;
    return;
  }

  SampleRow<T> row{x,    n,
                   max,  inverse_temperature(temperature),
                   0.0f, static_cast<uint64_t>(least_weight(p.min_p ? p.min_p[r] : 0.0))};
  uint64_t end = ~uint64_t{0};
  if (top_k_of(p) > 0 || top_p_of(p) < 1) {
    float range = fminf(-kLeastZ, -row.z(stats.lowest));
    if (top_k_of(p) == 0) {
      // What lies z below the maximum weighs n exp(-z) together; under 1 - top_p of the maximum it is cut.
      range = fminf(range, logf(static_cast<float>(n / fmax(1 - top_p_of(p), 1e-16))));
    }
    row.bins_per = range > 0 ? fminf((kBins - 1) / range, 3e38f) : 0.0f;
    end = filter(row, p, s);
  }
  if (end != 0) draw(row, end, p, s);
}

}  // namespace

Error launch_sample_tokens(const SampleParams& p, void* stream) {
  if (p.logits.rows == 0) return kSuccess;
  return dispatch_float(p.logits.dtype, [&](auto element) {
    return launch(sample_tokens_kernel<decltype(element)>, dim3(static_cast<unsigned>(p.logits.rows)),
                  dim3(kThreads), 0, stream, p);
  });
}

}  // namespace inferx::cuda
