// The arithmetic of routing that CPU and device share, so that both choose the same experts and give them the
// same weights, bit for bit.
//
// Experts are compared as integers that sort like their choosing scores: like the logits where no bias is
// added, because softmax and sigmoid rise with them.  Sums over all experts are sums of integers, whose order
// is free; sums over the chosen ones go in the order of choice.
#pragma once
#include "moe_routing_params.h"
#include "sampling_math.h"

namespace inferx::moe {

#define INFERX_ROUTING static inline INFERX_HOST_DEVICE

// Below every expert's key: taken already, not in a chosen group, or past the last expert.
constexpr uint32_t kNoKey = 0;

// Sorts like x; NaN counts as -inf.
INFERX_ROUTING uint32_t choice_key(float x) { return sampling::key_of(x == x ? x : -HUGE_VALF); }

// exp(z) for z <= 0, within 1 ulp (exp_nonpositive holds down to -87.3, where its result would be subnormal);
// 0 below -87 and for NaN.
INFERX_ROUTING float exp_or_zero(float z) {
  const bool counts = z >= -87.0f;
  const float e = sampling::exp_nonpositive(counts ? z : 0.0f);
  return counts ? e : 0.0f;
}

// x - max; 0 at the maximum also where that is infinite.
INFERX_ROUTING float below_max(float x, float max) { return x == max ? 0.0f : x - max; }

// The softmax's denominator, from the sum of weight_of(below_max(x, max)) over a row.
INFERX_ROUTING float denominator_of(int64_t total) { return static_cast<float>(total) * 0x1p-42f; }
static_assert(sampling::kWeightBits == 42, "denominator_of scales by it");

INFERX_ROUTING float sigmoid(float x) {
  const float t = exp_or_zero(x < 0 ? x : -x);
  return (x < 0 ? t : 1.0f) / (1.0f + t);
}

// An expert's weight before it is divided: by the denominator of the softmax, by the sum of the chosen, or
// not at all.
INFERX_ROUTING float undivided_weight(Scoring scoring, float x, float max) {
  return scoring == Scoring::softmax ? exp_or_zero(below_max(x, max)) : sigmoid(x);
}

INFERX_ROUTING float final_weight(float weight, float divisor, float scale, bool row_has_nan) {
  if (row_has_nan) return sampling::float_of(0x7fc00000u);
  return divisor > 0 ? weight / divisor * scale : 0.0f;
}

// The score that chooses under a bias.  NaN logits count as -inf, not as what their sigmoid would be.
INFERX_ROUTING uint32_t biased_key(Scoring scoring, float x, float max, float denominator, float bias) {
  const float weight = undivided_weight(scoring, x, max);
  const float score = (scoring == Scoring::softmax ? weight / denominator : weight) + bias;
  return choice_key(x == x ? score : x);
}

// A group's score under a bias: the sum of its two best (DeepSeek-V3); of a single expert, that one's.
INFERX_ROUTING uint32_t group_key(uint32_t best, uint32_t second) {
  if (second == kNoKey) return best;
  return choice_key(sampling::value_of(best) + sampling::value_of(second));
}

}  // namespace inferx::moe
