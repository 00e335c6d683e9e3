// The running state of one work item's rows, and how it is started, folded and finished.
#pragma once
#include "cpu/isa/attention_simd.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

#define INFERX_NOINLINE __attribute__((noinline))

constexpr int kTile = kAttentionTile;
constexpr float kNegativeInfinity = -__builtin_inff();

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
INFERX_INLINE float finite_or_zero(float max) { return max == kNegativeInfinity ? 0.0f : max; }
INFERX_INLINE int32_t clamp_to_tile(int64_t position) {
  return position < 0 ? 0 : position > kTile ? kTile : static_cast<int32_t>(position);
}

// Rows of one KV head: queries x group of query heads, row = query * group + head in group.
struct Rows {
  int64_t count, group;
  int64_t padded;  // value_dim rounded up to whole vectors: the length of an accumulator row
};

// Of one KV head of the item: online softmax of the split at hand, and what the finished splits gave.
struct HeadState {
  float* q;                // packed as score_block reads it
  float *acc, *max, *sum;  // acc = sum of exp(score - max) * value, [rows][padded]
  float *total, *total_max, *total_sum;
};

// Everything an item needs, carved out of the thread's scratch (attention_scratch_floats).
struct Scratch {
  float *scores, *panel, *values;  // of the tile at hand
  float *alpha, *new_max;
  int32_t *first, *end;  // the keys that each row sees: absolute positions [first, end)
  HeadState head[kAttentionItemHeads];

  Scratch(float* memory, const AttentionParams& params, const AttentionItem& item, const Rows& rows,
          int score_rows) {
    const int64_t padded = attention_padded_dim(params.value_dim), padded_rows = round_up(rows.count, 16);
    float* p = memory;
    auto take = [&p](int64_t floats) {
      float* start = p;
      p += round_up(floats, 16);
      return start;
    };
    scores = take(padded_rows * kTile);
    panel = take(kTile * attention_padded_dim(params.head_dim));
    values = take(kTile * padded);
    alpha = take(padded_rows);
    new_max = take(padded_rows);
    first = reinterpret_cast<int32_t*>(take(padded_rows));
    end = reinterpret_cast<int32_t*>(take(padded_rows));
    for (int64_t h = 0; h < item.num_kv_heads; ++h) {
      head[h].q = take(round_up(rows.count, score_rows) * params.head_dim);
      head[h].acc = take(padded_rows * padded);
      head[h].total = take(padded_rows * padded);
      float** row_values[] = {&head[h].max, &head[h].sum, &head[h].total_max, &head[h].total_sum};
      for (float** values : row_values) *values = take(padded_rows);
    }
  }
};

INFERX_INLINE void start_split(const HeadState& head, const Rows& rows) {
  for (int64_t r = 0; r < round_up(rows.count, 16); ++r) {
    head.max[r] = kNegativeInfinity;
    head.sum[r] = 0.0f;
  }
  memset(head.acc, 0, rows.count * rows.padded * sizeof(float));
}

INFERX_INLINE void start_item(const HeadState& head, const Rows& rows) {
  for (int64_t r = 0; r < rows.count; ++r) {
    head.total_max[r] = kNegativeInfinity;
    head.total_sum[r] = 0.0f;
  }
  memset(head.total, 0, rows.count * rows.padded * sizeof(float));
}

// Folds one split's state (acc, max, sum) of a row into the running one.
INFERX_NOINLINE void fold_row(float* total, float* total_max, float* total_sum, const float* acc, float max,
                              float sum, int64_t padded) {
  if (max == kNegativeInfinity && sum == 0.0f) return;  // no key of this split is visible; NaN goes on
  if (*total_max == kNegativeInfinity && *total_sum == 0.0f) {  // as is, like a row of one split only
    memcpy(total, acc, padded * sizeof(float));
    *total_max = max;
    *total_sum = sum;
    return;
  }
  const float new_max = *total_max > max ? *total_max : max;
  const V safe = vset(finite_or_zero(new_max));
  const V old_weight = vexp(vset(*total_max) - safe), weight = vexp(vset(max) - safe);
  *total_sum = vfma(vset(sum), weight, vset(*total_sum) * old_weight)[0];
  *total_max = new_max;
  for (int64_t d = 0; d < padded; d += kWidth)
    vstore(total + d, vfma(vload(acc + d), weight, vload(total + d) * old_weight));
}

// The state of a finished split goes to its partial result, or into the running one.
INFERX_NOINLINE void end_split(const HeadState& head, const Rows& rows, float* partial, int64_t record) {
  for (int64_t r = 0; r < rows.count; ++r) {
    const float* acc = head.acc + r * rows.padded;
    if (partial) {
      float* row = partial + r * record;
      memcpy(row, acc, rows.padded * sizeof(float));
      row[record - 2] = head.max[r];
      row[record - 1] = head.sum[r];
    } else {
      fold_row(head.total + r * rows.padded, head.total_max + r, head.total_sum + r, acc, head.max[r],
               head.sum[r], rows.padded);
    }
  }
}

// Divides by the denominator (with the sink's share), writes the output row and its log-sum-exp.
INFERX_NOINLINE void finish_row(const AttentionParams& p, const float* total, float max, float sum,
                                int64_t token, int64_t head) {
  V numerator_weight = vset(1.0f);
  if (p.sinks) {
    const float sink = p.sinks[head];
    const float new_max = max > sink ? max : sink;
    const V safe = vset(finite_or_zero(new_max));
    numerator_weight = vexp(vset(max) - safe);
    sum = vfma(vset(sum), numerator_weight, vexp(vset(sink) - safe))[0];
    max = new_max;
  }
  if (p.lse) {
    p.lse[token * p.lse_stride_token + head * p.lse_stride_head] =
        sum == 0.0f ? kNegativeInfinity : max + __builtin_logf(sum);
  }
  float* out = p.out + token * p.out_stride_token + head * p.out_stride_head;
  if (sum == 0.0f) {
    for (int64_t d = 0; d < p.value_dim; ++d) out[d] = 0.0f;
    return;
  }
  const V factor = numerator_weight / vset(sum);
  int64_t d = 0;
  for (; d + kWidth <= p.value_dim; d += kWidth) vstore(out + d, vload(total + d) * factor);
  if (d < p.value_dim) vstore_low8(out + d, vload(total + d) * factor);
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
