// Attention over a paged cache for one work item: online softmax over key tiles
// inside a split, splits folded in order.  Method: Milakov & Gimelshein,
// "Online normalizer calculation for softmax" (2018), tiled as in
// FlashAttention (Dao et al., 2022), split along the keys as in FlashDecoding.
#include "cpu/attention_kernels.h"
#include "cpu/isa/attention_tile.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

constexpr float kNegativeInfinity = -__builtin_inff();
alignas(64) const float kZeroRow[kAttentionMaxHeadDim] =
    {}; // stands in for keys that do not exist

// The buffers of one item, carved out of the thread's scratch.
struct Scratch {
  float *q, *scores, *keys, *values, *acc, *total;
  float *max, *sum, *alpha, *new_max, *total_max, *total_sum;
  int32_t *first,
      *end; // the keys that each row sees: absolute positions [first, end)

  Scratch(float *p, int64_t rows, int64_t head_dim) {
    const int64_t padded = attention_padded_dim(head_dim),
                  padded_rows = round_up(rows, 16);
    auto take = [&p](int64_t floats) {
      float *start = p;
      p += floats;
      return start;
    };
    q = take(round_up(round_up(rows, kScoreRows) * head_dim, 16));
    scores = take(padded_rows * kTile);
    keys = take(kPanel * padded);
    values = take(kTile * padded);
    acc = take(padded_rows * padded);
    total = take(padded_rows * padded);
    float **row_states[] = {&max,     &sum,       &alpha,
                            &new_max, &total_max, &total_sum};
    for (float **row_state : row_states)
      *row_state = take(padded_rows);
    first = reinterpret_cast<int32_t *>(take(padded_rows));
    end = reinterpret_cast<int32_t *>(take(padded_rows));
  }
};

struct Rows {
  int64_t count = 0, group = 0, padded = 0; // count = queries x group
};

INFERX_INLINE float finite_or_zero(float max) {
  return max == kNegativeInfinity ? 0.0f : max;
}
INFERX_INLINE int32_t clamp_to_tile(int64_t position) {
  return position < 0       ? 0
         : position > kTile ? kTile
                            : static_cast<int32_t>(position);
}

// Folds one split's state (acc, max, sum) of a row into the running one.
INFERX_NOINLINE void fold_row(float *total, float *total_max, float *total_sum,
                              const float *acc, float max, float sum,
                              int64_t padded) {
  if (max == kNegativeInfinity)
    return; // no key of this split is visible
  const float new_max = *total_max > max ? *total_max : max;
  const V safe = vset(finite_or_zero(new_max));
  const V old_weight = vexp(vset(*total_max) - safe),
          weight = vexp(vset(max) - safe);
  *total_sum = vfma(vset(sum), weight, vset(*total_sum) * old_weight)[0];
  *total_max = new_max;
  for (int64_t d = 0; d < padded; d += kWidth)
    vstore(total + d,
           vfma(vload(acc + d), weight, vload(total + d) * old_weight));
}

// Divides by the denominator (with the sink's share), writes the output row and
// its log-sum-exp.
INFERX_NOINLINE void finish_row(const AttentionParams &p, const float *total,
                                float max, float sum, int64_t token,
                                int64_t head) {
  V numerator_weight = vset(1.0f);
  if (p.sinks) {
    const float sink = p.sinks[head];
    const float new_max = max > sink ? max : sink;
    const V safe = vset(finite_or_zero(new_max));
    numerator_weight = vexp(vset(max) - safe);
    sum = vfma(vset(sum), numerator_weight, vexp(vset(sink) - safe))[0];
    max = new_max;
  }
  float *out = p.out + token * p.out_stride_token + head * p.out_stride_head;
  if (p.lse)
    p.lse[token * p.lse_stride_token + head * p.lse_stride_head] =
        sum == 0.0f ? kNegativeInfinity : max + __builtin_logf(sum);
  if (sum == 0.0f) {
    for (int64_t d = 0; d < p.head_dim; ++d)
      out[d] = 0.0f;
    return;
  }
  const V denominator = vset(sum);
  int64_t d = 0;
  for (; d + kWidth <= p.head_dim; d += kWidth)
    vstore(out + d, vload(total + d) * numerator_weight / denominator);
  if (d < p.head_dim)
    vstore_low8(out + d, vload(total + d) * numerator_weight / denominator);
}

// Scores of one row -> soft-capped and masked in place; returns their maximum.
INFERX_INLINE float mask_and_max(float *scores, int32_t first, int32_t end,
                                 float softcap) {
  V best = vset(kNegativeInfinity);
  if (first == 0 && end == kTile && softcap == 0.0f) {
    for (int i = 0; i < kTile; i += kWidth)
      best = vmax(best, vload(scores + i));
    return hmax(best);
  }
  for (int i = 0; i < kTile; i += kWidth) {
    V s = vload(scores + i);
    if (softcap != 0.0f)
      s = vset(softcap) * vtanh(s / vset(softcap));
    const VI lane = vlanes() + i;
    const VI visible = (VI)(lane >= viset(first)) & (VI)(lane < viset(end));
    s = visible ? s : vset(kNegativeInfinity);
    vstore(scores + i, s);
    best = vmax(best, s);
  }
  return hmax(best);
}

// Scores -> weights exp(score - max), the rows' maxima and sums brought up to
// date, and in `alpha` the factor for what the rows have accumulated so far.
INFERX_NOINLINE void softmax_tile(const Scratch &s, int64_t rows,
                                  int64_t tile_start, float softcap) {
  for (int64_t r = 0; r < rows; ++r) {
    float *scores = s.scores + r * kTile;
    const int32_t first = clamp_to_tile(s.first[r] - tile_start),
                  end = clamp_to_tile(s.end[r] - tile_start);
    const float best = mask_and_max(scores, first, end, softcap);
    s.new_max[r] = s.max[r] > best ? s.max[r] : best;
  }
  for (int64_t r = 0; r < rows; r += kWidth) {
    const V new_max = vload(s.new_max + r);
    const V safe = new_max == vset(kNegativeInfinity) ? vset(0.0f) : new_max;
    vstore(s.alpha + r, vexp(vload(s.max + r) - safe));
    vstore(s.max + r, new_max);
  }
  for (int64_t r = 0; r < rows; ++r) {
    float *scores = s.scores + r * kTile;
    const V safe = vset(finite_or_zero(s.max[r]));
    V sum = vset(0.0f);
    for (int i = 0; i < kTile; i += kWidth) {
      const V weight = vexp(vload(scores + i) - safe);
      vstore(scores + i, weight);
      sum = sum + weight;
    }
    s.sum[r] = vfma(vset(s.sum[r]), vset(s.alpha[r]), vset(hsum(sum)))[0];
  }
}

// The keys that any of the rows [r, r + count) sees within the tile.  Later
// rows see later keys.
struct Span {
  int begin, end;
};
INFERX_INLINE Span visible_span(const Scratch &s, int64_t r, int count,
                                int64_t tile_start) {
  Span span{kTile, 0};
  for (int i = 0; i < count; ++i) {
    const int begin = clamp_to_tile(s.first[r + i] - tile_start),
              end = clamp_to_tile(s.end[r + i] - tile_start);
    if (begin >= end)
      continue;
    if (begin < span.begin)
      span.begin = begin;
    if (end > span.end)
      span.end = end;
  }
  return span;
}

// Scores of the keys [begin, end) for all rows, those that a row does not see
// included (softmax_tile drops them).
template <class T>
INFERX_NOINLINE void score_tile(const AttentionParams &p, const Scratch &s,
                                int64_t rows, int64_t tile_start, int begin,
                                int end, const T *const *keys,
                                const T *const *next) {
  for (int key = begin / kPanel * kPanel; key < end; key += kPanel) {
    float *scores = s.scores + key;
    if (rows <= kFusedRows) {
      scores_of_panel<T>(static_cast<int>(rows), s.q, keys + key, next + key,
                         p.head_dim, p.scale, scores);
      continue;
    }
    pack_panel(keys + key, next + key, p.head_dim, s.keys);
    for (int64_t r = 0; r < rows; r += kScoreRows) {
      const int count =
          static_cast<int>(rows - r < kScoreRows ? rows - r : kScoreRows);
      const Span span = visible_span(s, r, count, tile_start);
      if (span.begin >= key + kPanel || span.end <= key)
        continue;
      scores_of(count, s.q + r * p.head_dim, s.keys, p.head_dim, p.scale,
                scores + r * kTile);
    }
  }
}

template <class T>
INFERX_NOINLINE void value_tile(const Scratch &s, int64_t rows,
                                int64_t tile_start, const T *const *values,
                                const T *const *next, int64_t padded) {
  const int vecs = static_cast<int>(padded / kWidth);
  for (int v = 0; v < vecs; v += kValueVecs) {
    for (int64_t r = 0; r < rows; r += kValueRows) {
      const int count =
          static_cast<int>(rows - r < kValueRows ? rows - r : kValueRows);
      const Span span = visible_span(s, r, count, tile_start);
      if (span.begin >= span.end)
        continue; // nothing visible: alpha is 1, or there is nothing to scale
      values_of<T>(vecs - v, count, s.scores + r * kTile, values,
                   r == 0 ? next : nullptr, v * kWidth, span.begin, span.end,
                   s.alpha + r, s.acc + r * padded + v * kWidth, padded);
    }
  }
}

// As value_tile, but each row touches only the keys that it sees: a weight of 0
// would turn the infinity or NaN of somebody else's key into a NaN here.
INFERX_NOINLINE void value_tile_by_row(const Scratch &s, int64_t rows,
                                       int64_t tile_start,
                                       const float *const *values,
                                       int64_t padded) {
  const int vecs = static_cast<int>(padded / kWidth);
  for (int64_t r = 0; r < rows; ++r) {
    const Span span = visible_span(s, r, 1, tile_start);
    if (span.begin >= span.end)
      continue;
    for (int v = 0; v < vecs; v += kValueVecs)
      values_of<float>(vecs - v, 1, s.scores + r * kTile, values, nullptr,
                       v * kWidth, span.begin, span.end, s.alpha + r,
                       s.acc + r * padded + v * kWidth, padded);
  }
}

// Where a tile's keys and values lie; those that no query of the item sees are
// a row of zeros.
template <class T> struct TileRows {
  const T *key[kTile];
  const T *value[kTile];
};

// The item's part of the cache.
template <class T> class CacheRows {
public:
  CacheRows(const AttentionParams &p, const AttentionItem &item)
      : table_(p.block_tables + item.request * p.block_tables_stride), p_(p) {
    keys_ =
        static_cast<const T *>(p.key_cache) + item.kv_head * p.key_stride_head;
    values_ = static_cast<const T *>(p.value_cache) +
              item.kv_head * p.value_stride_head;
  }

  // Only rows [begin, end) of the tile are looked up.
  INFERX_NOINLINE void find(int64_t tile_start, int begin, int end,
                            TileRows<T> &rows) const {
    const T *zeros = reinterpret_cast<const T *>(kZeroRow);
    for (int i = 0; i < begin; ++i)
      rows.key[i] = rows.value[i] = zeros;
    for (int i = end; i < kTile; ++i)
      rows.key[i] = rows.value[i] = zeros;
    int64_t block = (tile_start + begin) / p_.block_size,
            slot = (tile_start + begin) % p_.block_size;
    for (int i = begin; i < end;) {
      const int64_t id = table_[block++];
      const T *key =
          keys_ + id * p_.key_stride_block + slot * p_.key_stride_slot;
      const T *value =
          values_ + id * p_.value_stride_block + slot * p_.value_stride_slot;
      for (; slot < p_.block_size && i < end; ++slot, ++i) {
        rows.key[i] = key;
        rows.value[i] = value;
        key += p_.key_stride_slot;
        value += p_.value_stride_slot;
      }
      slot = 0;
    }
  }

private:
  const int32_t *table_;
  const AttentionParams &p_;
  const T *keys_;
  const T *values_;
};

INFERX_NOINLINE void load_queries(const AttentionParams &p,
                                  const AttentionItem &item, const Rows &rows,
                                  const Scratch &s) {
  const int64_t start = p.cu_seqlens_q[item.request],
                q_len = p.cu_seqlens_q[item.request + 1] - start;
  for (int64_t i = 0; i < item.num_queries; ++i) {
    const int64_t token = item.first_query + i,
                  end = p.seq_lens[item.request] - q_len + token + 1;
    for (int64_t g = 0; g < rows.group; ++g) {
      const int64_t r = i * rows.group + g;
      const float *query =
          p.query + (start + token) * p.query_stride_token +
          (item.kv_head * rows.group + g) * p.query_stride_head;
      float *packed =
          s.q + r / kScoreRows * kScoreRows * p.head_dim + r % kScoreRows;
      for (int64_t d = 0; d < p.head_dim; ++d)
        packed[d * kScoreRows] = query[d];
      s.end[r] = static_cast<int32_t>(end < 0 ? 0 : end);
      s.first[r] = static_cast<int32_t>(
          p.window > 0 && end > p.window ? end - p.window : 0);
    }
  }
}

// One tile: [begin, end) are the keys that some row sees, relative to
// tile_start.
template <class T>
INFERX_NOINLINE void attend_tile(const AttentionParams &p, const Rows &rows,
                                 const Scratch &s, const TileRows<T> &tile,
                                 const TileRows<T> &next, int64_t tile_start,
                                 int begin, int end) {
  score_tile(p, s, rows.count, tile_start, begin, end, tile.key, next.key);
  softmax_tile(s, rows.count, tile_start, p.softcap);

  bool all_see_all = true;
  for (int64_t r = 0; r < rows.count; ++r)
    all_see_all &=
        s.first[r] <= tile_start + begin && s.end[r] >= tile_start + end;
  const bool few_rows =
      rows.count <= 2 * kValueRows; // packing V would cost more than it saves
  if (few_rows && all_see_all && p.head_dim % kWidth == 0)
    return value_tile<T>(s, rows.count, tile_start, tile.value, next.value,
                         rows.padded);
  const float *packed[kTile];
  for (int i = 0; i < kTile; ++i)
    packed[i] = s.values + i * rows.padded;
  const bool finite = pack_values(tile.value, next.value, begin, end,
                                  p.head_dim, rows.padded, s.values);
  if (finite || all_see_all)
    value_tile<float>(s, rows.count, tile_start, packed, nullptr, rows.padded);
  else
    value_tile_by_row(s, rows.count, tile_start, packed, rows.padded);
}

void start_split(const Rows &rows, const Scratch &s) {
  for (int64_t r = 0; r < round_up(rows.count, 16); ++r) {
    s.max[r] = s.new_max[r] = kNegativeInfinity;
    s.sum[r] = 0.0f;
  }
  memset(s.acc, 0, rows.count * rows.padded * sizeof(float));
}

// The state of a finished split goes to its partial result, or into the running
// one.
void end_split(const AttentionParams &p, const Rows &rows, const Scratch &s,
               float *partial) {
  const int64_t record = attention_partial_floats(p.head_dim);
  for (int64_t r = 0; r < rows.count; ++r) {
    const float *acc = s.acc + r * rows.padded;
    if (partial) {
      float *row = partial + r * record;
      memcpy(row, acc, rows.padded * sizeof(float));
      row[record - 2] = s.max[r];
      row[record - 1] = s.sum[r];
    } else {
      fold_row(s.total + r * rows.padded, s.total_max + r, s.total_sum + r, acc,
               s.max[r], s.sum[r], rows.padded);
    }
  }
}

template <class T>
void attend(const AttentionParams &p, const AttentionItem &item,
            float *partials, float *memory) {
  Rows rows;
  rows.group = p.num_heads / p.num_kv_heads;
  rows.count = item.num_queries * rows.group;
  rows.padded = round_up(p.head_dim, kWidth);
  const Scratch s(memory, rows.count, p.head_dim);
  load_queries(p, item, rows, s);
  memset(s.total, 0, rows.count * rows.padded * sizeof(float));
  for (int64_t r = 0; r < rows.count; ++r) {
    s.total_max[r] = kNegativeInfinity;
    s.total_sum[r] = 0.0f;
  }

  // The first row sees the earliest key of all, the last row the latest.
  const int64_t item_begin = item.first_split * kAttentionSplit,
                item_end = item.end_split * kAttentionSplit;
  const int64_t begin = item_begin > s.first[0] ? item_begin : s.first[0];
  const int64_t end =
      item_end < s.end[rows.count - 1] ? item_end : s.end[rows.count - 1];
  const CacheRows<T> cache(p, item);
  TileRows<T> buffers[2];
  const int64_t first_tile = begin / kTile * kTile;
  if (begin < end)
    cache.find(first_tile, clamp_to_tile(begin - first_tile),
               clamp_to_tile(end - first_tile), buffers[0]);
  int current = 0;
  for (int64_t tile = first_tile; tile < end; tile += kTile, current ^= 1) {
    const int64_t next = tile + kTile;
    const bool is_last = next >= end;
    if (!is_last)
      cache.find(next, 0, clamp_to_tile(end - next), buffers[current ^ 1]);
    if (tile == first_tile || tile % kAttentionSplit == 0)
      start_split(rows, s);
    attend_tile(p, rows, s, buffers[current],
                buffers[is_last ? current : current ^ 1], tile,
                clamp_to_tile(begin - tile), clamp_to_tile(end - tile));
    if (is_last || next % kAttentionSplit == 0) {
      const int64_t index = tile / kAttentionSplit - item.first_split;
      end_split(p, rows, s,
                item.partial < 0
                    ? nullptr
                    : partials + item.partial +
                          index * rows.count *
                              attention_partial_floats(p.head_dim));
    }
  }
  if (item.partial >= 0)
    return;
  const int64_t token = p.cu_seqlens_q[item.request] + item.first_query;
  for (int64_t r = 0; r < rows.count; ++r)
    finish_row(p, s.total + r * rows.padded, s.total_max[r], s.total_sum[r],
               token + r / rows.group,
               item.kv_head * rows.group + r % rows.group);
}

void attend_item(const AttentionParams &p, const AttentionItem &item,
                 float *partials, float *scratch) {
  switch (p.cache_dtype) {
  case DType::f16:
    return attend<F16>(p, item, partials, scratch);
  case DType::bf16:
    return attend<BF16>(p, item, partials, scratch);
  default:
    return attend<float>(p, item, partials, scratch);
  }
}

void merge_item(const AttentionParams &p, const AttentionItem &item,
                const float *partials) {
  const int64_t group = p.num_heads / p.num_kv_heads,
                rows = item.num_queries * group;
  const int64_t padded = round_up(p.head_dim, kWidth),
                record = attention_partial_floats(p.head_dim);
  const int64_t token = p.cu_seqlens_q[item.request] + item.first_query;
  for (int64_t r = 0; r < rows; ++r) {
    alignas(64) float total[kAttentionMaxHeadDim] = {};
    float max = kNegativeInfinity, sum = 0.0f;
    for (int64_t split = item.first_split; split < item.end_split; ++split) {
      const float *partial = partials + item.partial +
                             ((split - item.first_split) * rows + r) * record;
      fold_row(total, &max, &sum, partial, partial[record - 2],
               partial[record - 1], padded);
    }
    finish_row(p, total, max, sum, token + r / group,
               item.kv_head * group + r % group);
  }
}

// out = prefix * w_prefix + suffix * w_suffix, the weights from the
// log-sum-exps.
void merge_states(const MergeStatesParams &p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t token = row / p.num_heads, head = row % p.num_heads;
    const float prefix_lse = p.prefix_lse[token * p.prefix_lse_stride_token +
                                          head * p.prefix_lse_stride_head];
    const float suffix_lse = p.suffix_lse[token * p.suffix_lse_stride_token +
                                          head * p.suffix_lse_stride_head];
    const float *prefix =
        p.prefix + token * p.prefix_stride_token + head * p.prefix_stride_head;
    const float *suffix =
        p.suffix + token * p.suffix_stride_token + head * p.suffix_stride_head;
    float *out = p.out + token * p.out_stride_token + head * p.out_stride_head;
    const float max = prefix_lse > suffix_lse ? prefix_lse : suffix_lse;
    const V safe = vset(finite_or_zero(max));
    const float a = vexp(vset(prefix_lse) - safe)[0],
                b = vexp(vset(suffix_lse) - safe)[0];
    const float sum = a + b;
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    const float wa = a * inverse, wb = b * inverse;
    // A side of weight 0 is not read: the output of an empty row is its owner's
    // business.
    if (wa == 0.0f || wb == 0.0f) {
      const float *only = wa != 0.0f ? prefix : suffix;
      for (int64_t d = 0; d < p.head_dim; ++d)
        out[d] = sum == 0.0f ? 0.0f : only[d];
    } else {
      int64_t d = 0;
      for (; d + kWidth <= p.head_dim; d += kWidth)
        vstore(out + d,
               vfma(vload(prefix + d), vset(wa), vload(suffix + d) * vset(wb)));
      for (; d < p.head_dim; ++d)
        out[d] = __builtin_fmaf(prefix[d], wa, suffix[d] * wb);
    }
    if (p.out_lse)
      p.out_lse[token * p.out_lse_stride_token + head * p.out_lse_stride_head] =
          sum == 0.0f ? kNegativeInfinity : max + __builtin_logf(sum);
  }
}

} // namespace

const AttentionKernels attention_kernels{attend_item, merge_item, merge_states};

} // namespace inferx::cpu::INFERX_ISA
