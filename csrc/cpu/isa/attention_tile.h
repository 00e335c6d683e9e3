// The inner loops of attention over one tile of kAttentionTile keys: packing K and V, scores, and the
// weighted sum of V.  Each output of each loop is one chain of fused multiply-adds in a fixed order (over
// head_dim for a score, over keys for the sum), whatever the register blocking: blocking and row count
// never change a bit.
#pragma once
#include "cpu/isa/attention_cache.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// Register blocks, rows x vectors.  32 registers hold 12x2 (scores) and 6x4 (values) accumulators, 16 hold
// 6x2.
#if defined(__AVX512F__)
constexpr int kScoreRows = 12, kFusedRows = 6, kValueRows = 6, kValueVecs = 4;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kScoreRows = 6, kFusedRows = 3, kValueRows = 6, kValueVecs = 2;
#else
constexpr int kScoreRows = 4, kFusedRows = 4, kValueRows = 4, kValueVecs = 2;
#endif
constexpr int kPanel = 2 * kWidth;  // keys per panel of the packed K tile
static_assert(kTile % kPanel == 0, "a tile is a whole number of panels");

// Loads after it are done anew.  GCC would rather load once what two unrolled bodies share, and then spill
// it.
#define INFERX_KEEP_LOADS() asm volatile("" ::: "memory")

// Reads the kPanel rows of a panel by columns: calls use(group, d, column) for d in ascending order,
// `column` holding element d of rows [group * kWidth, (group + 1) * kWidth).  16-bit elements are
// transposed in pairs, which halves the shuffles.
template <class T, class Use>
INFERX_INLINE void for_columns(const T* const* rows, Ahead<T>& shared_ahead, int64_t head_dim,
                               const Use& use) {
  int64_t d = 0;
  Ahead<T> ahead = shared_ahead;  // in registers
  if constexpr (sizeof(T) == 2) {
    for (; d + 2 * kWidth <= head_dim; d += 2 * kWidth) {
#pragma GCC unroll 2
      for (int group = 0; group < 2; ++group) {
        INFERX_KEEP_LOADS();
        ahead.step();
        V words[kWidth];
#pragma GCC unroll 16
        for (int i = 0; i < kWidth; ++i) memcpy(&words[i], rows[group * kWidth + i] + d, sizeof(V));
        vtranspose_pairs(words, T());
#pragma GCC unroll 32
        for (int i = 0; i < 2 * kWidth; ++i) use(group, d + i, vcolumn(words, i, T()));
      }
    }
  }
  for (; d + kWidth <= head_dim; d += kWidth) {
#pragma GCC unroll 2
    for (int group = 0; group < 2; ++group) {
      INFERX_KEEP_LOADS();
      ahead.step();
      V block[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) block[i] = vload(rows[group * kWidth + i] + d);
      vtranspose(block);
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) use(group, d + i, block[i]);
    }
  }
  if constexpr (kWidth > 8) {
#pragma GCC unroll 2
    for (int group = 0; group < 2; ++group) {
      if (d == head_dim) break;
      INFERX_KEEP_LOADS();
      V block[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) block[i] = vload_low8(rows[group * kWidth + i] + d);
      vtranspose(block);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) use(group, d + i, block[i]);
    }
  }
  shared_ahead = ahead;
}

// How often for_columns takes a step.
template <class T>
constexpr int steps_per_panel(int64_t head_dim) {
  const int64_t pairs = sizeof(T) == 2 ? head_dim / (2 * kWidth) : 0;
  return static_cast<int>(2 * (pairs + (head_dim - pairs * 2 * kWidth) / kWidth));
}

// kPanel rows of K -> one panel [head_dim][kPanel] of float32.
template <class T>
INFERX_NOINLINE void pack_panel(const T* const* rows, Ahead<T>& ahead, int64_t head_dim, float* panel) {
  for_columns(rows, ahead, head_dim, [panel](int group, int64_t d, V column) __attribute__((always_inline)) {
    vstore(panel + d * kPanel + group * kWidth, column);
  });
}

// As pack_panel and score_block in one, for rows so few that a packed panel would be read only once; q is
// [kRows][head_dim].
template <int kRows, class T>
INFERX_NOINLINE void score_panel(const float* q, const T* const* rows, Ahead<T>& ahead, int64_t head_dim,
                                 float* scores) {
  V acc[2][kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) acc[0][r] = acc[1][r] = vset(0.0f);
  for_columns(rows, ahead, head_dim, [&](int group, int64_t d, V column) __attribute__((always_inline)) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc[group][r] = vfma(vset(q[r * head_dim + d]), column, acc[group][r]);
  });
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    vstore(scores + r * kTile, acc[0][r]);
    vstore(scores + r * kTile + kWidth, acc[1][r]);
  }
}

// Rows of queries times scale -> blocks [head_dim][kScoreRows] as score_block reads them, or [head_dim] each
// where score_panel does.
class QueryPacker {
 public:
  QueryPacker(int64_t rows, int64_t head_dim, float scale)
      : rows_(rows), head_dim_(head_dim), scale_(vset(scale)) {}

  // query(r) is the start of row r.
  template <class Query>
  INFERX_INLINE void pack(const Query& query, float* packed) const {
    if (rows_ <= kFusedRows) {
      for (int64_t r = 0; r < rows_; ++r) {
        const float* row = query(r);
        float* out = packed + r * head_dim_;
        int64_t d = 0;
        for (; d + kWidth <= head_dim_; d += kWidth) vstore(out + d, vload(row + d) * scale_);
        if (d < head_dim_) vstore_low8(out + d, vload_low8(row + d) * scale_);
      }
      return;
    }
    for (int64_t r = 0; r < rows_; r += kScoreRows) {
      const float* row[kWidth];
      for (int i = 0; i < kWidth; ++i) row[i] = i < kScoreRows && r + i < rows_ ? query(r + i) : kZeroRow;
      for (int64_t i = r + kScoreRows; i < r + 2 * kScoreRows && i < rows_; ++i)
        for (int64_t d = 0; d < head_dim_; d += 16) __builtin_prefetch(query(i) + d);
      pack_block(row, packed + r * head_dim_);
    }
  }

 private:
  INFERX_NOINLINE void pack_block(const float* const* row, float* out) const {
    int64_t d = 0;
    for (; d + kWidth <= head_dim_; d += kWidth) {
      V block[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) block[i] = vload(row[i] + d);
      store_columns<kWidth>(block, out + d * kScoreRows);
    }
    if (d < head_dim_) {
      V block[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) block[i] = vload_low8(row[i] + d);
      store_columns<8>(block, out + d * kScoreRows);
    }
  }
  template <int kColumns>
  INFERX_INLINE void store_columns(V* block, float* out) const {
    vtranspose(block);
#pragma GCC unroll 16
    for (int i = 0; i < (kColumns < kWidth ? kColumns : kWidth); ++i) {
      const V column = block[i] * scale_;
      memcpy(out + i * kScoreRows, &column, kScoreRows * sizeof(float));
    }
  }

  int64_t rows_, head_dim_;
  V scale_;
};
static_assert(kScoreRows <= kWidth, "a block of queries is one transpose");

// V rows [begin, end) of the tile -> float32 [kTile][padded], the padding 0. True if all of them are
// finite.
template <class T>
INFERX_NOINLINE bool pack_values(const T* const* rows, Ahead<T>& shared_ahead, int begin, int end,
                                 int64_t head_dim, int64_t padded, float* packed) {
  const V zero = vset(0.0f);
  Ahead<T> ahead = shared_ahead;
  V probe = zero;  // x * 0 is NaN for infinities and NaN
  for (int key = begin; key < end; ++key) {
    float* out = packed + key * padded;
    ahead.step();
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
  shared_ahead = ahead;
  return hsum(probe) == 0.0f;
}

// scores[r][0..kPanel) = q_r . k for kRows rows; q is [head_dim][kScoreRows], k one panel.
template <int kRows>
INFERX_NOINLINE void score_block(const float* q, const float* panel, int64_t head_dim, float* scores) {
  V acc[kRows][2];
#pragma GCC unroll 16
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
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    vstore(scores + r * kTile, acc[r][0]);
    vstore(scores + r * kTile + kWidth, acc[r][1]);
  }
}

// acc[r][0..kVecs * kWidth) = alpha_r * acc[r] + sum over keys of weights[r][key] * rows[key].
template <int kRows, int kVecs, class T>
INFERX_NOINLINE void value_block(const float* weights, const T* const* rows, Ahead<T>* ahead, int64_t d,
                                 int begin, int end, const float* alpha, float* acc, int64_t stride) {
  V sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    const V a = vset(alpha[r]);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sum[r][v] = vload(acc + r * stride + v * kWidth) * a;
  }
  Ahead<T> own = ahead ? *ahead : Ahead<T>();
  for (int key = begin; key < end; ++key) {
    V x[kVecs];
    if (ahead) own.step();
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) x[v] = vload(rows[key] + d + v * kWidth);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const V p = vset(weights[r * kTile + key]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sum[r][v] = vfma(p, x[v], sum[r][v]);
    }
  }
  if (ahead) *ahead = own;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) vstore(acc + r * stride + v * kWidth, sum[r][v]);
}

template <class T, int kRows = kFusedRows>
INFERX_INLINE void scores_of_panel(int count, const float* q, const T* const* rows, Ahead<T>& ahead,
                                   int64_t head_dim, float* scores) {
  if (count == kRows) return score_panel<kRows, T>(q, rows, ahead, head_dim, scores);
  if constexpr (kRows > 1) scores_of_panel<T, kRows - 1>(count, q, rows, ahead, head_dim, scores);
}

template <int kRows = kScoreRows>
INFERX_INLINE void scores_of(int rows, const float* q, const float* panel, int64_t head_dim, float* scores) {
  if (rows == kRows) return score_block<kRows>(q, panel, head_dim, scores);
  if constexpr (kRows > 1) scores_of<kRows - 1>(rows, q, panel, head_dim, scores);
}

template <int kVecs, class T, int kRows = kValueRows>
INFERX_INLINE void values_of_rows(int count, const float* weights, const T* const* rows, Ahead<T>* ahead,
                                  int64_t d, int begin, int end, const float* alpha, float* acc,
                                  int64_t stride) {
  if (count == kRows)
    return value_block<kRows, kVecs, T>(weights, rows, ahead, d, begin, end, alpha, acc, stride);
  if constexpr (kRows > 1)
    values_of_rows<kVecs, T, kRows - 1>(count, weights, rows, ahead, d, begin, end, alpha, acc, stride);
}

template <class T, int kVecs = kValueVecs>
INFERX_INLINE void values_of(int vecs, int count, const float* weights, const T* const* rows, Ahead<T>* ahead,
                             int64_t d, int begin, int end, const float* alpha, float* acc, int64_t stride) {
  if (vecs >= kVecs)
    return values_of_rows<kVecs, T>(count, weights, rows, ahead, d, begin, end, alpha, acc, stride);
  if constexpr (kVecs > 1)
    values_of<T, kVecs - 1>(vecs, count, weights, rows, ahead, d, begin, end, alpha, acc, stride);
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
