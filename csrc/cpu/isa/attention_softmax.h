// Masks and the online softmax over one tile.
#pragma once
#include "cpu/isa/attention_state.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// Keys of a tile that some of the rows [r, r + count) see; empty where begin >= end.
struct Span {
  int begin, end;
};
INFERX_INLINE Span visible_span(const Scratch& s, int64_t r, int count, int64_t tile_start) {
  Span span{kTile, 0};
  for (int i = 0; i < count; ++i) {
    const int begin = clamp_to_tile(s.first[r + i] - tile_start),
              end = clamp_to_tile(s.end[r + i] - tile_start);
    if (begin >= end) continue;
    if (begin < span.begin) span.begin = begin;
    if (end > span.end) span.end = end;
  }
  return span;
}

// Scores of one row, soft-capped and masked in place; returns their maximum.  Vectors without a visible key
// are not touched: they may hold anything.
INFERX_INLINE float mask_and_max(float* scores, int32_t first, int32_t end, float softcap) {
  V best = vset(kNegativeInfinity);
  if (first == 0 && end == kTile && softcap == 0.0f) {
#pragma GCC unroll 4
    for (int i = 0; i < kTile; i += kWidth) best = vmax(best, vload(scores + i));
    return hmax(best);
  }
  for (int i = first / kWidth * kWidth; i < end; i += kWidth) {
    V score = vload(scores + i);
    if (softcap != 0.0f) score = vset(softcap) * vtanh(score / vset(softcap));
    const VI lane = vlanes() + i;
    const VI visible = (VI)(lane >= viset(first)) & (VI)(lane < viset(end));
    score = visible ? score : vset(kNegativeInfinity);
    vstore(scores + i, score);
    best = vmax(best, score);
  }
  return hmax(best);
}

// Masked scores of one row become weights exp(score - max), 0 in vectors without a visible key; returns
// their sum.
INFERX_INLINE float weights_and_sum(float* scores, int32_t first, int32_t end, float max) {
  const V safe = vset(finite_or_zero(max));
  V sum = vset(0.0f);
  if (first == 0 && end == kTile) {
#pragma GCC unroll 4
    for (int i = 0; i < kTile; i += kWidth) {
      const V weight = vexp(vload(scores + i) - safe);
      vstore(scores + i, weight);
      sum = sum + weight;
    }
    return hsum(sum);
  }
  const int begin = first / kWidth * kWidth;
  for (int i = 0; i < kTile; i += kWidth) {
    V weight = vset(0.0f);
    if (i >= begin && i < end) weight = vexp(vload(scores + i) - safe);
    vstore(scores + i, weight);
    sum = sum + weight;
  }
  return hsum(sum);
}

// Scores become weights exp(score - max), 0 for keys that a row does not see; the rows' maxima and sums are
// brought up to date, and s.alpha is the factor for what the rows have accumulated so far.
INFERX_NOINLINE void softmax_tile(const Scratch& s, const HeadState& head, int64_t rows, int64_t tile_start,
                                  float softcap) {
  for (int64_t r = 0; r < rows; ++r) {
    const int32_t first = clamp_to_tile(s.first[r] - tile_start), end = clamp_to_tile(s.end[r] - tile_start);
    const float best =
        first < end ? mask_and_max(s.scores + r * kTile, first, end, softcap) : kNegativeInfinity;
    s.new_max[r] = head.max[r] > best ? head.max[r] : best;
  }
  for (int64_t r = rows; r < round_up(rows, kWidth); ++r) s.new_max[r] = kNegativeInfinity;
  for (int64_t r = 0; r < rows; r += kWidth) {
    const V new_max = vload(s.new_max + r);
    const V safe = new_max == vset(kNegativeInfinity) ? vset(0.0f) : new_max;
    vstore(s.alpha + r, vexp(vload(head.max + r) - safe));
    vstore(head.max + r, new_max);
  }
  for (int64_t r = 0; r < rows; ++r) {
    int32_t first = clamp_to_tile(s.first[r] - tile_start), end = clamp_to_tile(s.end[r] - tile_start);
    if (first >= end) first = end = 0;
    const float sum = weights_and_sum(s.scores + r * kTile, first, end, head.max[r]);
    head.sum[r] = vfma(vset(head.sum[r]), vset(s.alpha[r]), vset(sum))[0];
  }
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
