// Online softmax in base 2 on the accumulators of mma.m16n8k16.
//
// A lane holds, of each n8 tile of scores, keys 2 * (lane % 4) and the next one of rows lane / 4 ([0], [1])
// and lane / 4 + 8 ([2], [3]).  There is no finite stand-in for minus infinity: a row that has seen no key
// has maximum -inf, sum 0 and output 0.
#pragma once
#include <cmath>

#include "kernels/attention/request.cuh"
#include "simt/simt.h"

namespace inferx::cuda {

using namespace simt;

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// From raw scores to logits in base 2: logit = outer * s, or outer * tanh(inner * s) with a soft cap.
struct LogitScale {
  float inner, outer;
};

// factor: what the raw score has to be multiplied with besides p.scale (the cache's scale, the query's).
SIMT_DEV LogitScale logit_scale(const PagedAttentionParams& p, float factor) {
  if (p.softcap > 0) return {p.scale * factor / p.softcap, p.softcap * kLog2e};
  return {0, p.scale * factor * kLog2e};
}

// Within 2e-7; saturates at +-1 through the infinities of exp2.
SIMT_DEV float soft_tanh(float x) { return 1.0f - 2.0f / (1.0f + fast_exp2(x * (2 * kLog2e))); }

// The reference of the exponents.  Rows without a key use 0, so that no -inf - -inf arises.
SIMT_DEV float finite_max(float m) { return m == -INFINITY ? 0.0f : m; }

struct RowState {
  float max[2], sum[2];  // sum: this lane's share, see sum_over_lanes
};

SIMT_DEV void reset(RowState& state) {
  for (int r = 0; r < 2; ++r) {
    state.max[r] = -INFINITY;
    state.sum[r] = 0;
  }
}

// Turns raw scores of N x 8 keys from first_key on into weights exp2(logit - max), and says what everything
// accumulated so far has to be multiplied with.  rows[r]: the keys that the row sees.  present: bit n is
// clear when tile n's keys are absent.  kMasked false: the caller knows that all rows see all these keys.
template <bool kMasked, int N>
SIMT_DEV void softmax_step(float (&s)[N][4], RowState& state, float (&correction)[2],
                           const LogitScale (&scale)[2], bool capped, const KeySpan (&rows)[2], int first_key,
                           uint32_t present = ~0u) {
  const int lane_key = first_key + lane_id() % 4 * 2;
  float top[2] = {state.max[0], state.max[1]};
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = e / 2;
      if (capped) s[n][e] = soft_tanh(s[n][e] * scale[r].inner);
      if (kMasked) {
        const int key = lane_key + n * 8 + e % 2;
        const bool seen = (present >> n & 1) && key >= rows[r].begin && key < rows[r].end;
        top[r] = fmaxf(top[r], seen ? s[n][e] * scale[r].outer : -INFINITY);
      } else {
        top[r] = fmaxf(top[r], s[n][e] * scale[r].outer);
      }
    }
  }
  float base[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
    top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
    base[r] = finite_max(top[r]);
    correction[r] = fast_exp2(state.max[r] - base[r]);
    state.max[r] = top[r];
    state.sum[r] *= correction[r];
  }
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int r = e / 2;
      // One rounding: the product of a far logit is not rounded before the subtraction.
      float weight = fast_exp2(fmaf(s[n][e], scale[r].outer, -base[r]));
      if (kMasked) {
        const int key = lane_key + n * 8 + e % 2;
        const bool seen = (present >> n & 1) && key >= rows[r].begin && key < rows[r].end;
        weight = seen ? weight : 0.0f;
      }
      s[n][e] = weight;
      state.sum[r] += weight;
    }
  }
}

// The four lanes of a row hold a share of its sum each.
SIMT_DEV float sum_over_lanes(float sum) {
  sum += __shfl_xor_sync(~0u, sum, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}

// Joining two partial results of a row with accumulators a and b: a * weight.a + b * weight.b, and likewise
// their sums.  Equal arithmetic everywhere, so that it does not matter which kernel joins.
struct JoinWeights {
  float max, a, b;
};
SIMT_DEV JoinWeights join_weights(float max_a, float max_b) {
  const float max = fmaxf(max_a, max_b), base = finite_max(max);
  return {max, fast_exp2(max_a - base), fast_exp2(max_b - base)};
}
SIMT_DEV float join(float a, float b, const JoinWeights& weights) {
  return fmaf(a, weights.a, b * weights.b);
}

// The end of a row: what its accumulator is multiplied with (`scale`: the values' scale), and its log-sum-exp
// (natural).  sink: one more logit without a value, -inf for none.
struct RowEnd {
  float factor, lse;
};
SIMT_DEV RowEnd finish_row(float max, float sum, float sink, float scale) {
  const JoinWeights weights = join_weights(max, sink * kLog2e);
  sum = join(sum, 1.0f, weights);
  if (sum == 0) return {0, -INFINITY};
  return {weights.a * scale / sum, (finite_max(weights.max) + log2f(sum)) * kLn2};
}

}  // namespace inferx::cuda
