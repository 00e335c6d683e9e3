// The inner loops of attention over one tile of kAttentionTile keys: packing K and V, scores, and the
// weighted sum of V.  Each output of each loop is one chain of fused multiply-adds in a fixed order (over
// head_dim for a score, over keys for the sum), whatever the register blocking: blocking and row count never
// change a bit.
#pragma once
#include "cpu/isa/attention_simd.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// Register blocks, rows x vectors.  32 registers hold 12x2 (scores) and 6x4 (values) accumulators, 16 hold
// 6x2.
#if defined(__AVX512F__)
constexpr int kScoreRows = 12, kValueRows = 6, kValueVecs = 4;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kScoreRows = 6, kValueRows = 6, kValueVecs = 2;
#else
constexpr int kScoreRows = 4, kValueRows = 4, kValueVecs = 2;
#endif
constexpr int kPanel = 2 * kWidth;  // keys per panel of the packed K tile
constexpr int kTile = kAttentionTile;
static_assert(kTile % kPanel == 0, "a tile is a whole number of panels");

#define INFERX_NOINLINE __attribute__((noinline))

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// K rows -> panels [kTile / kPanel][head_dim][kPanel] of float32.
template <class T>
INFERX_NOINLINE void pack_keys(const T* const* rows, int64_t head_dim, float* packed) {
  for (int key = 0; key < kTile; key += kWidth) {
    float* panel = packed + (key / kPanel) * head_dim * kPanel + key % kPanel;
    int64_t d = 0;
    for (; d + kWidth <= head_dim; d += kWidth) {
      V block[kWidth];
      for (int i = 0; i < kWidth; ++i) block[i] = vload(rows[key + i] + d);
      vtranspose(block);
      for (int i = 0; i < kWidth; ++i) vstore(panel + (d + i) * kPanel, block[i]);
    }
    if constexpr (kWidth > 8) {
      if (d == head_dim) continue;
      V block[kWidth];
      for (int i = 0; i < kWidth; ++i) block[i] = vload_low8(rows[key + i] + d);
      vtranspose(block);
      for (int i = 0; i < 8; ++i) vstore(panel + (d + i) * kPanel, block[i]);
    }
  }
}

// V rows [begin, end) of the tile -> float32 [kTile][padded], the padding 0.  True if all of them are finite.
template <class T>
INFERX_NOINLINE bool pack_values(const T* const* rows, int begin, int end, int64_t head_dim, int64_t padded,
                                 float* packed) {
  const V zero = vset(0.0f);
  V probe = zero;  // x * 0 is NaN for infinities and NaN
  for (int key = begin; key < end; ++key) {
    float* out = packed + key * padded;
    int64_t d = 0;
    for (; d + kWidth <= head_dim; d += kWidth) {
      V v = vload(rows[key] + d);
      probe = vfma(v, zero, probe);
      vstore(out + d, v);
    }
    if (d < head_dim) {
      V v = vload_low8(rows[key] + d);
      probe = vfma(v, zero, probe);
      vstore(out + d, v);
      d += kWidth;
    }
    for (; d < padded; d += kWidth) vstore(out + d, zero);
  }
  return hsum(probe) == 0.0f;
}

// scores[r][0..kPanel) = scale * q_r . k for kRows rows; q is [head_dim][kScoreRows], k one panel.
template <int kRows>
INFERX_NOINLINE void score_block(const float* q, const float* panel, int64_t head_dim, float scale,
                                 float* scores) {
  V acc[kRows][2];
  for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = vset(0.0f);
  for (int64_t d = 0; d < head_dim; ++d) {
    const V k0 = vload(panel + d * kPanel), k1 = vload(panel + d * kPanel + kWidth);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r) {
      const V a = vset(q[d * kScoreRows + r]);
      acc[r][0] = vfma(a, k0, acc[r][0]);
      acc[r][1] = vfma(a, k1, acc[r][1]);
    }
  }
  const V s = vset(scale);
  for (int r = 0; r < kRows; ++r) {
    vstore(scores + r * kTile, acc[r][0] * s);
    vstore(scores + r * kTile + kWidth, acc[r][1] * s);
  }
}

// acc[r][0..kVecs * kWidth) = alpha_r * acc[r] + sum over keys of weights[r][key] * rows[key].
template <int kRows, int kVecs, class T>
INFERX_NOINLINE void value_block(const float* weights, const T* const* rows, int64_t d, int begin, int end,
                                 const float* alpha, float* acc, int64_t stride) {
  V sum[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    const V a = vset(alpha[r]);
    for (int v = 0; v < kVecs; ++v) sum[r][v] = vload(acc + r * stride + v * kWidth) * a;
  }
  for (int key = begin; key < end; ++key) {
    V x[kVecs];
    for (int v = 0; v < kVecs; ++v) x[v] = vload(rows[key] + d + v * kWidth);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const V p = vset(weights[r * kTile + key]);
      for (int v = 0; v < kVecs; ++v) sum[r][v] = vfma(p, x[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVecs; ++v) vstore(acc + r * stride + v * kWidth, sum[r][v]);
}

template <int kRows = kScoreRows>
INFERX_INLINE void scores_of(int rows, const float* q, const float* panel, int64_t head_dim, float scale,
                             float* scores) {
  if (rows == kRows) return score_block<kRows>(q, panel, head_dim, scale, scores);
  if constexpr (kRows > 1) scores_of<kRows - 1>(rows, q, panel, head_dim, scale, scores);
}

template <int kVecs, class T, int kRows = kValueRows>
INFERX_INLINE void values_of_rows(int count, const float* weights, const T* const* rows, int64_t d, int begin,
                                  int end, const float* alpha, float* acc, int64_t stride) {
  if (count == kRows) return value_block<kRows, kVecs, T>(weights, rows, d, begin, end, alpha, acc, stride);
  if constexpr (kRows > 1)
    values_of_rows<kVecs, T, kRows - 1>(count, weights, rows, d, begin, end, alpha, acc, stride);
}

template <class T, int kVecs = kValueVecs>
INFERX_INLINE void values_of(int vecs, int count, const float* weights, const T* const* rows, int64_t d,
                             int begin, int end, const float* alpha, float* acc, int64_t stride) {
  if (vecs >= kVecs) return values_of_rows<kVecs, T>(count, weights, rows, d, begin, end, alpha, acc, stride);
  if constexpr (kVecs > 1)
    values_of<T, kVecs - 1>(vecs, count, weights, rows, d, begin, end, alpha, acc, stride);
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
