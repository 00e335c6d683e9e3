#include "cpu/moe_routing.h"

#include "cpu/isa/dispatch_dtype.h"
#include "moe_routing_math.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

using moe::kNoKey;
using moe::RoutingParams;
using moe::Scoring;

// Experts are looked through in chunks whose best is known, so that taking one touches two short lists.
constexpr int kChunk = 16;
constexpr int kMaxChunks = moe::kMaxExperts / kChunk;

struct Row {
  alignas(64) float x[moe::kMaxExperts];
  alignas(64) uint32_t keys[moe::kMaxExperts];  // kNoKey up to a whole chunk
  uint32_t best[kMaxChunks];
  float max;
  bool has_nan;
};

template <class T>
inline void load_row(Row& row, const T* logits, int experts) {
  F tops = splat(-__builtin_inff());
  I nans = {};
  for_each_vector(experts, [&](int64_t i, int64_t count) {
    F v = load(logits + i, count);
    store(row.x + i, v);
    for (int64_t l = count; l < kLanes; ++l) v[l] = v[0];
    nans |= v != v;
    tops = select(v > tops, v, tops);
  });
  float max = -__builtin_inff();
  int nan = 0;
  for (int l = 0; l < kLanes; ++l) {
    max = tops[l] > max ? tops[l] : max;
    nan |= nans[l];
  }
  row.max = max;
  row.has_nan = nan != 0;
}

// The loops over experts are written for the compiler's own vectoriser: straight lines of operations.
inline float denominator(const Row& row, int experts) {
  int64_t total = 0;
  for (int e = 0; e < experts; ++e) total += sampling::weight_of(moe::below_max(row.x[e], row.max));
  return moe::denominator_of(total);
}

template <Scoring kScoring>
inline void set_biased_keys(Row& row, const float* bias, int experts, float denominator) {
  for (int e = 0; e < experts; ++e) {
    row.keys[e] = moe::biased_key(kScoring, row.x[e], row.max, denominator, bias[e]);
  }
}

inline void set_keys(Row& row, const RoutingParams& p, float denominator) {
  if (p.bias == nullptr) {
    for (int e = 0; e < p.experts; ++e) row.keys[e] = moe::choice_key(row.x[e]);
  } else if (p.scoring == Scoring::softmax) {
    set_biased_keys<Scoring::softmax>(row, p.bias, p.experts, denominator);
  } else {
    set_biased_keys<Scoring::sigmoid>(row, p.bias, p.experts, denominator);
  }
  for (int e = p.experts; e % kChunk != 0; ++e) row.keys[e] = kNoKey;
}

// Leaves the experts of the best groups; of equal groups the first.
inline void drop_groups(Row& row, const RoutingParams& p) {
  const int size = p.experts / p.groups;
  uint32_t scores[moe::kMaxGroups];
  for (int g = 0; g < p.groups; ++g) {
    uint32_t best = kNoKey, second = kNoKey;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      const uint32_t key = row.keys[e], less = key < best ? key : best;
      best = key > best ? key : best;
      second = less > second ? less : second;
    }
    scores[g] = p.bias ? moe::group_key(best, second) : best;
  }
  bool chosen[moe::kMaxGroups] = {};
  for (int i = 0; i < p.top_groups; ++i) {
    int best = -1;
    for (int g = 0; g < p.groups; ++g) {
      if (!chosen[g] && (best < 0 || scores[g] > scores[best])) best = g;
    }
    chosen[best] = true;
  }
  for (int g = 0; g < p.groups; ++g) {
    if (!chosen[g]) __builtin_memset(row.keys + g * size, 0, size * sizeof(uint32_t));
  }
}

inline uint32_t best_of_chunk(const uint32_t* keys) {
  uint32_t best = keys[0];
  for (int i = 1; i < kChunk; ++i) best = keys[i] > best ? keys[i] : best;
  return best;
}

// The experts by falling keys, equal ones by rising id.
inline void choose(Row& row, int experts, int top_k, int32_t* ids) {
  const int chunks = (experts + kChunk - 1) / kChunk;
  for (int c = 0; c < chunks; ++c) row.best[c] = best_of_chunk(row.keys + c * kChunk);
  for (int j = 0; j < top_k; ++j) {
    int chunk = 0;
    for (int c = 1; c < chunks; ++c) chunk = row.best[c] > row.best[chunk] ? c : chunk;
    int e = chunk * kChunk;
    while (row.keys[e] != row.best[chunk]) ++e;
    ids[j] = e;
    row.keys[e] = kNoKey;
    row.best[chunk] = best_of_chunk(row.keys + chunk * kChunk);
  }
}

inline void weigh(const Row& row, const RoutingParams& p, const int32_t* ids, float denominator,
                  float* weights) {
  float sum = 0.0f;
  for (int j = 0; j < p.top_k; ++j) {
    weights[j] = moe::undivided_weight(p.scoring, row.x[ids[j]], row.max);
    sum += weights[j];
  }
  const float divisor = p.renormalize ? sum : denominator;
  for (int j = 0; j < p.top_k; ++j) {
    weights[j] = moe::final_weight(weights[j], divisor, p.scale, row.has_nan);
  }
}

template <class T>
void route_rows(const RoutingParams& p, int64_t begin, int64_t end) {
  Row row;
  const bool needs_denominator = p.scoring == Scoring::softmax && (p.bias != nullptr || !p.renormalize);
  for (int64_t t = begin; t < end; ++t) {
    int32_t* ids = p.ids + t * p.top_k;
    load_row(row, static_cast<const T*>(p.logits) + t * p.row_stride, p.experts);
    const float divisor = needs_denominator ? denominator(row, p.experts) : 1.0f;
    set_keys(row, p, divisor);
    if (p.top_groups < p.groups) drop_groups(row, p);
    choose(row, p.experts, p.top_k, ids);
    weigh(row, p, ids, divisor, p.weights + t * p.top_k);
  }
}

void route(const RoutingParams& p, int64_t begin, int64_t end) {
  dispatch_dtype(p.dtype, [&](auto type) { route_rows<typename decltype(type)::type>(p, begin, end); });
}

}  // namespace

const MoeRoutingKernels moe_routing_kernels = {route};

}  // namespace inferx::cpu::INFERX_ISA
