// One CTA an entry.  Three passes over the row's logits: maximum; sum of the weights, rank and histogram;
// gathering the most likely.  Without alternatives the last is left out.
#include <cmath>

#include "kernels/sampling.h"
#include "kernels/sampling/select.cuh"

namespace inferx::cuda {
namespace {

template <class T>
struct LogprobRow {
  static constexpr bool kCountsAll = true;

  const T* x;
  int n;  // num_ids
  float max, bins_per;

  SIMT_DEV int bin_of(float value) const {
    const float bin = (max - value) * bins_per;  // NaN where max is +inf, or value -inf and bins_per 0
    return bin < kBins - 1 ? static_cast<int>(bin) : kBins - 1;
  }
  SIMT_DEV uint64_t weight(float) const { return 0; }
  SIMT_DEV bool may_count(float) const { return true; }
};

// Writes the first of the row's order.
template <class T>
SIMT_DEV void write_top(const LogprobRow<T>& row, SelectScratch& s, int64_t total, const LogprobParams& p) {
  const int num_top = static_cast<int>(p.num_top);
  Select<LogprobRow<T>> select(row, s);
  const Around around = select.look(By::count, num_top, 1.0, false);
  if (!around.all) {
    const uint64_t last = s.order[around.limit - 1];
    select.gather([&](float, uint64_t order) { return order <= last; });
  }
  for (int i = threadIdx.x; i < num_top; i += kThreads) {
    const int64_t at = int64_t{blockIdx.x} * (1 + num_top) + 1 + i;
    p.ids[at] = order_id(s.order[i]);
    p.logprobs[at] = logprob_of(order_value(s.order[i]), row.max, total);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    token_logprobs_kernel(const __grid_constant__ LogprobParams p) {
  SHARED(SelectScratch, scratch, [1]);
  SelectScratch& s = scratch[0];
  const int64_t entry = blockIdx.x, r = p.rows ? p.rows[entry] : entry, token = p.token_ids[entry];
  const int num_top = static_cast<int>(p.num_top), vocab = static_cast<int>(p.logits.vocab);
  const bool exists = r >= 0 && r < p.logits.rows;
  const T* x = static_cast<const T*>(p.logits.data) + (exists ? r : 0) * p.logits.row_stride;

  float max = -INFINITY, lowest = INFINITY;
  bool nan = false;
  for_each<4>(x, 0, exists ? vocab : 0, threadIdx.x, kThreads, [&](float value, int) {
    nan |= value != value;
    max = fmaxf(max, value);
    if (value > -INFINITY) lowest = fminf(lowest, value);
  });
  const auto more = [](uint64_t a, uint64_t b) { return a > b ? a : b; };
  const auto less = [](uint64_t a, uint64_t b) { return a < b ? a : b; };
  max = value_of(static_cast<uint32_t>(block_reduce(key_of(max), more, s.block)));
  lowest = value_of(static_cast<uint32_t>(block_reduce(key_of(lowest), less, s.block)));
  if (__syncthreads_or(nan) || max == -INFINITY) {
    for (int i = threadIdx.x; i <= num_top; i += kThreads) {
      p.ids[entry * (1 + num_top) + i] = i == 0 ? token : i - 1;
      p.logprobs[entry * (1 + num_top) + i] = NAN;
    }
    if (threadIdx.x == 0) p.ranks[entry] = 0;
    return;
  }

  const bool known = token >= 0 && token < vocab;
  const float chosen = known ? to_float(x[token]) : INFINITY;
  uint64_t weight = 0, above = 0;
  for_each<1>(x, 0, vocab, threadIdx.x, kThreads, [&](float value, int id) {
    weight += weight_of(value - max);
    above += value > chosen && id < p.num_ids;
  });
  const int64_t total = max == INFINITY ? 1 : static_cast<int64_t>(block_sum(weight, s.block));
  above = block_sum(above, s.block);
  if (threadIdx.x == 0) {
    p.ids[entry * (1 + num_top)] = token;
    p.logprobs[entry * (1 + num_top)] = known ? logprob_of(chosen, max, total) : NAN;
    p.ranks[entry] = known ? 1 + static_cast<int64_t>(above) : 0;
  }
  if (num_top == 0) return;
  // The most likely are seldom further down than this; what is lies in the last bin and is found there.
  const float range = fminf(max - lowest, 30.0f);
  const LogprobRow<T> row{x, static_cast<int>(p.num_ids), max,
                          range > 0 ? fminf((kBins - 1) / range, 3e38f) : 0.0f};
  write_top(row, s, total, p);
}

}  // namespace

Error launch_token_logprobs(const LogprobParams& p, void* stream) {
  if (p.count == 0) return kSuccess;
  return dispatch_float(p.logits.dtype, [&](auto element) {
    return launch(token_logprobs_kernel<decltype(element)>, dim3(static_cast<unsigned>(p.count)),
                  dim3(kThreads), 0, stream, p);
  });
}

}  // namespace inferx::cuda
