#include "cpu/sampling_row.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sampling_math.h"

namespace inferx::cpu {

using namespace sampling;

namespace {

constexpr int64_t kBlock = 512;  // ids whose weights are summed before the draw looks inside
constexpr int64_t kFew = 1024;   // up to this top_k the candidates are found by comparisons alone

}  // namespace

const float* RowSampler::as_float(DType dtype, const void* x, int64_t n) {
  if (dtype == DType::f32) return static_cast<const float*>(x);
  row_.resize(n);
  kernels_.to_float(dtype, row_.data(), x, n);
  return row_.data();
}

int64_t RowSampler::draw(const float* x, int64_t n, float max, const RowOptions& options) {
  const bool some = options.top_k > 0 && options.top_k < n;
  if (some && options.top_k <= kFew) return draw_from_few(x, n, max, options);
  if (!some && !(options.top_p < 1)) return draw_from_all(x, n, max, options);
  float least_z = kLeastZ;
  if (!some) {
    // What lies z below the maximum weighs n exp(z) together, and is cut when that is under 1 - top_p of the
    // maximum alone.
    least_z = std::max(least_z, static_cast<float>(std::log((1 - options.top_p) / n)) - 0.01f);
  }
  collect(x, n, max, least_z, options);
  if (some) keep_prefix(max, options.top_k, nullptr);
  if (options.top_p < 1) {
    const int64_t sum = some ? std::accumulate(weights_.begin(), weights_.end(), int64_t{0})
                             : kernels_.total(x, n, max, options.scale, options.least);
    keep_prefix(max, mass_limit(options.top_p, sum), weights_.data());
  }
  return draw_from_candidates(options.random);
}

int64_t RowSampler::draw_from_all(const float* x, int64_t n, float max, const RowOptions& options) {
  int64_t sums[kMaxVocab / kBlock], sum = 0;
  for (int64_t i = 0; i < n; i += kBlock) {
    sum += sums[i / kBlock] =
        kernels_.total(x + i, std::min(kBlock, n - i), max, options.scale, options.least);
  }
  int64_t target = draw_target(options.random, sum);
  size_t block = 0;
  while (target >= sums[block]) target -= sums[block++];
  const int64_t start = static_cast<int64_t>(block) * kBlock;
  int64_t weights[kBlock];
  kernels_.weights(weights, x + start, std::min(kBlock, n - start), max, options.scale, options.least);
  int64_t i = 0;
  while (target >= weights[i]) target -= weights[i++];
  return start + i;
}

// A small top_k: the rest of the row is compared with the k-th largest so far, and never exponentiated.
int64_t RowSampler::draw_from_few(const float* x, int64_t n, float max, const RowOptions& options) {
  take_largest(x, n, options.top_k);
  const auto weight_at = [&](uint64_t order) {
    const int64_t weight = weight_of((order_value(order) - max) * options.scale);
    return weight >= options.least ? weight : 0;
  };
  if (options.top_p < 1) {
    std::sort(orders_.begin(), orders_.end());
    int64_t sum = 0, before = 0;
    for (uint64_t order : orders_) sum += weight_at(order);
    const int64_t limit = mass_limit(options.top_p, sum);
    size_t kept = 0;
    while (kept < orders_.size() && before < limit) before += weight_at(orders_[kept++]);
    orders_.resize(kept);
  }
  std::sort(orders_.begin(), orders_.end(), [](uint64_t a, uint64_t b) { return order_id(a) < order_id(b); });
  ids_.clear();
  weights_.clear();
  for (uint64_t order : orders_) {
    ids_.push_back(static_cast<int32_t>(order_id(order)));
    weights_.push_back(weight_at(order));
  }
  return draw_from_candidates(options.random);
}

int64_t RowSampler::draw_from_candidates(uint64_t random) const {
  int64_t target = draw_target(random, std::accumulate(weights_.begin(), weights_.end(), int64_t{0}));
  size_t i = 0;
  while (target >= weights_[i]) target -= weights_[i++];
  return ids_[i];
}

// The candidates: everything with z >= least_z, by rising id.
void RowSampler::collect(const float* x, int64_t n, float max, float least_z, const RowOptions& options) {
  ids_.resize(n + kCollectRoom);
  const int64_t count = kernels_.collect(ids_.data(), x, n, max, options.scale, least_z, 0);
  ids_.resize(count);
  values_.resize(count);
  for (int64_t i = 0; i < count; ++i) values_[i] = x[ids_[i]];
  weights_.resize(count);
  kernels_.weights(weights_.data(), values_.data(), count, max, options.scale, options.least);
}

// Takes their weight from the candidates that have a cost of `limit` or more before them in falling order of
// x.  A histogram of the costs (null: 1 each) finds the bin where the limit falls; only that bin is sorted.
void RowSampler::keep_prefix(float max, int64_t limit, const int64_t* cost) {
  constexpr int kBins = 4096;
  const int64_t count = static_cast<int64_t>(values_.size());
  const auto cost_at = [&](int64_t i) { return cost ? cost[i] : 1; };
  const float min = *std::min_element(values_.begin(), values_.end());
  // Halves, so that the difference of the largest and the smallest float is one too.
  const float half_range = max * 0.5f - min * 0.5f;
  const float bins_per = half_range > 0 ? std::min((kBins - 1) / half_range, 3e38f) : 0.0f;
  bins_.resize(count);
  kernels_.bins(bins_.data(), values_.data(), count, max * 0.5f, bins_per, kBins);
  int64_t costs[kBins] = {};
  for (int64_t i = 0; i < count; ++i) costs[bins_[i]] += cost_at(i);
  int cut = 0;
  int64_t before = 0;
  while (cut < kBins && before + costs[cut] < limit) before += costs[cut++];
  if (cut < kBins && before + costs[cut] > limit) {
    orders_.clear();
    for (int64_t i = 0; i < count; ++i) {
      if (bins_[i] == cut) orders_.push_back(order_of(values_[i], i));
    }
    std::sort(orders_.begin(), orders_.end());
    for (uint64_t order : orders_) {
      const int64_t i = order_id(order), own = cost_at(i);
      if (before >= limit) weights_[i] = 0;
      before += own;
    }
  }
  for (int64_t i = 0; i < count; ++i) weights_[i] = bins_[i] > cut ? 0 : weights_[i];
}

// Leaves the orders of the k largest in orders_, in any order.
void RowSampler::take_largest(const float* x, int64_t n, int64_t k) {
  const size_t most = static_cast<size_t>(std::max<int64_t>(4 * k, 2048));
  const auto shrink = [&] {
    if (orders_.size() <= static_cast<size_t>(k)) return;
    std::nth_element(orders_.begin(), orders_.begin() + (k - 1), orders_.end());
    orders_.resize(k);
  };
  ids_.resize(kBlock + kCollectRoom);
  orders_.clear();
  float limit = -INFINITY;
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t count = kernels_.collect_above(ids_.data(), x + start, std::min(kBlock, n - start), limit,
                                                 static_cast<int32_t>(start));
    for (int64_t i = 0; i < count; ++i) orders_.push_back(order_of(x[ids_[i]], ids_[i]));
    if (orders_.size() >= most) {
      shrink();
      limit = order_value(orders_.back());  // nth_element put the k-th there; later equals lose to it
    }
  }
  shrink();
}

const std::vector<uint64_t>& RowSampler::largest(const float* x, int64_t n, int64_t k) {
  orders_.clear();
  if (k == 0) return orders_;
  take_largest(x, n, k);
  std::sort(orders_.begin(), orders_.end());
  return orders_;
}

}  // namespace inferx::cpu
