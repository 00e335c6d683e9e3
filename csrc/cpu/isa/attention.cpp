// Attention over a paged cache for one work item: online softmax over key tiles inside a split, splits folded
// in order.  Method: Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018), tiled as in
// FlashAttention (Dao et al., 2022), split along the keys as in FlashDecoding.
#include "cpu/attention_kernels.h"
#include "cpu/isa/attention_cache.h"
#include "cpu/isa/attention_softmax.h"
#include "cpu/isa/attention_tile.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// The tile at hand, and those rows of the one after it that are to be asked for meanwhile.
template <class T>
struct Tile {
  const TileRows<T>& rows;
  Ahead<T> keys_ahead, values_ahead;

  Tile(const TileRows<T>& now, const TileRows<T>* next, const AttentionParams& p) : rows(now) {
    if (!next) return;
    const int count = next->end - next->begin;
    const T *const *keys = next->key + next->begin, *const *values = next->value + next->begin;
    if (p.value_cache == p.key_cache) {  // the same rows: one half while scoring, the other while summing
      keys_ahead = {keys, count / 2, p.head_dim};
      values_ahead = {keys + count / 2, count - count / 2, p.head_dim};
    } else {
      keys_ahead = {keys, count, p.head_dim};
      values_ahead = {values, count, p.value_dim};
    }
  }
};

// Scores of all rows, those of keys that a row does not see included (softmax_tile drops them).
template <class T>
INFERX_NOINLINE void score_tile(const AttentionParams& p, const Scratch& s, const HeadState& head,
                                int64_t rows, Tile<T>& tile) {
  tile.keys_ahead.spread_over((tile.rows.end - tile.rows.begin + kPanel - 1) / kPanel *
                              steps_per_panel<T>(p.head_dim));
  for (int key = tile.rows.begin / kPanel * kPanel; key < tile.rows.end; key += kPanel) {
    float* scores = s.scores + key;
    if (rows <= kFusedRows) {
      scores_of_panel<T>(static_cast<int>(rows), head.q, tile.rows.key + key, tile.keys_ahead, p.head_dim,
                         scores);
      continue;
    }
    pack_panel(tile.rows.key + key, tile.keys_ahead, p.head_dim, s.panel);
    for (int64_t r = 0; r < rows; r += kScoreRows) {
      const int count = static_cast<int>(rows - r < kScoreRows ? rows - r : kScoreRows);
      const Span span = visible_span(s, r, count, tile.rows.start);
      if (span.begin >= key + kPanel || span.end <= key) continue;
      scores_of(count, head.q + r * p.head_dim, s.panel, p.head_dim, scores + r * kTile);
    }
  }
}

template <class T>
INFERX_NOINLINE void value_tile(const Scratch& s, const HeadState& head, const Rows& rows, int64_t tile_start,
                                const T* const* values, Ahead<T>* ahead) {
  const int vecs = static_cast<int>(rows.padded / kWidth);
  for (int v = 0; v < vecs; v += kValueVecs) {
    for (int64_t r = 0; r < rows.count; r += kValueRows) {
      const int count = static_cast<int>(rows.count - r < kValueRows ? rows.count - r : kValueRows);
      const Span span = visible_span(s, r, count, tile_start);
      if (span.begin >= span.end) continue;  // nothing visible: alpha is 1, or there is nothing to scale
      values_of<T>(vecs - v, count, s.scores + r * kTile, values, r == 0 ? ahead : nullptr, v * kWidth,
                   span.begin, span.end, s.alpha + r, head.acc + r * rows.padded + v * kWidth, rows.padded);
    }
  }
}

// As value_tile, but each row touches only the keys that it sees: a weight of 0 would turn the infinity or
// NaN of somebody else's key into a NaN here.
INFERX_NOINLINE void value_tile_by_row(const Scratch& s, const HeadState& head, const Rows& rows,
                                       int64_t tile_start, const float* const* values) {
  const int vecs = static_cast<int>(rows.padded / kWidth);
  for (int64_t r = 0; r < rows.count; ++r) {
    const Span span = visible_span(s, r, 1, tile_start);
    if (span.begin >= span.end) continue;
    for (int v = 0; v < vecs; v += kValueVecs)
      values_of<float>(vecs - v, 1, s.scores + r * kTile, values, nullptr, v * kWidth, span.begin, span.end,
                       s.alpha + r, head.acc + r * rows.padded + v * kWidth, rows.padded);
  }
}

template <class T>
INFERX_NOINLINE void attend_tile(const AttentionParams& p, const Rows& rows, const Scratch& s,
                                 const HeadState& head, Tile<T>& tile) {
  score_tile(p, s, head, rows.count, tile);
  softmax_tile(s, head, rows.count, tile.rows.start, p.softcap);

  bool all_see_all = true;
  for (int64_t r = 0; r < rows.count; ++r)
    all_see_all &=
        s.first[r] <= tile.rows.start + tile.rows.begin && s.end[r] >= tile.rows.start + tile.rows.end;
  const bool few_rows = rows.count <= 2 * kValueRows;  // packing V would cost more than it saves
  const int keys = tile.rows.end - tile.rows.begin, vecs = static_cast<int>(rows.padded / kWidth);
  if (few_rows && all_see_all && p.value_dim % kWidth == 0) {
    tile.values_ahead.spread_over(keys * ((vecs + kValueVecs - 1) / kValueVecs));
    value_tile<T>(s, head, rows, tile.rows.start, tile.rows.value, &tile.values_ahead);
    return;
  }
  tile.values_ahead.spread_over(keys);
  const float* packed[kTile];
  for (int i = 0; i < kTile; ++i) packed[i] = s.values + i * rows.padded;
  const bool finite = pack_values(tile.rows.value, tile.values_ahead, tile.rows.begin, tile.rows.end,
                                  p.value_dim, rows.padded, s.values);
  if (finite || all_see_all)
    value_tile<float>(s, head, rows, tile.rows.start, packed, nullptr);
  else
    value_tile_by_row(s, head, rows, tile.rows.start, packed);
}

INFERX_NOINLINE void load_queries(const AttentionParams& p, const AttentionItem& item, const Rows& rows,
                                  const Scratch& s) {
  const int64_t start = p.cu_seqlens_q[item.request], q_len = p.cu_seqlens_q[item.request + 1] - start;
  for (int64_t i = 0; i < item.num_queries; ++i) {
    const int64_t token = item.first_query + i, end = p.seq_lens[item.request] - q_len + token + 1;
    for (int64_t g = 0; g < rows.group; ++g) {
      const int64_t r = i * rows.group + g;
      s.end[r] = static_cast<int32_t>(end < 0 ? 0 : end);
      s.first[r] = static_cast<int32_t>(p.window > 0 && end > p.window ? end - p.window : 0);
    }
  }
  const QueryPacker packer(rows.count, p.head_dim, p.scale);
  for (int64_t h = 0; h < item.num_kv_heads; ++h) {
    const float* first = p.query + (start + item.first_query) * p.query_stride_token +
                         (item.first_kv_head + h) * rows.group * p.query_stride_head;
    packer.pack(
        [&](int64_t r) __attribute__((always_inline)) {
          return first + r / rows.group * p.query_stride_token + r % rows.group * p.query_stride_head;
        },
        s.head[h].q);
  }
}

Rows rows_of(const AttentionParams& p, const AttentionItem& item) {
  const int64_t group = p.num_heads / p.num_kv_heads;
  return {item.num_queries * group, group, round_up(p.value_dim, kWidth)};
}

// Where the item's partial result for (split, head) starts.
float* partial_of(const AttentionItem& item, const Rows& rows, int64_t split, int64_t h, int64_t record,
                  float* partials) {
  return partials + item.partial + ((split - item.first_split) * item.num_kv_heads + h) * rows.count * record;
}

// Output of the item's KV head h.  Rows of `out` lie apart, so they are asked for in time.
INFERX_NOINLINE void finish_rows(const AttentionParams& p, const AttentionItem& item, const Rows& rows,
                                 int64_t h, const float* total, const float* max, const float* sum) {
  constexpr int64_t kAhead = 8;  // rows
  const int64_t token = p.cu_seqlens_q[item.request] + item.first_query;
  const int64_t head = (item.first_kv_head + h) * rows.group;
  for (int64_t r = 0; r < rows.count; ++r) {
    if (const int64_t later = r + kAhead; later < rows.count) {
      const float* out = p.out + (token + later / rows.group) * p.out_stride_token +
                         (head + later % rows.group) * p.out_stride_head;
      for (int64_t d = 0; d < p.value_dim; d += 16) __builtin_prefetch(out + d, 1);
    }
    finish_row(p, total + r * rows.padded, max[r], sum[r], token + r / rows.group, head + r % rows.group);
  }
}

template <class T>
void attend(const AttentionParams& p, const AttentionItem& item, float* partials, float* memory) {
  const Rows rows = rows_of(p, item);
  const Scratch s(memory, p, item, rows, kScoreRows);
  const int64_t record = attention_partial_floats(p.value_dim);
  load_queries(p, item, rows, s);
  // The first row sees the earliest key of all, the last row the latest.
  const int64_t item_begin = item.first_split * kAttentionSplit, item_end = item.end_split * kAttentionSplit;
  const int64_t begin = item_begin > s.first[0] ? item_begin : s.first[0];
  const int64_t end = item_end < s.end[rows.count - 1] ? item_end : s.end[rows.count - 1];
  // The state of the only split is the result; it need not be folded into anything.
  const bool whole = item.partial < 0;
  const bool one_split = whole && begin < end && begin / kAttentionSplit == (end - 1) / kAttentionSplit;
  if (!one_split)
    for (int64_t h = 0; h < item.num_kv_heads; ++h) start_item(s.head[h], rows);
  const CacheRows<T> cache(p, item);
  TileRows<T> buffers[2];
  TileRows<T>*now = &buffers[0], *next = &buffers[1];
  const int64_t first_tile = begin / kTile * kTile;
  if (begin < end) cache.find(first_tile, begin, end, *now);
  for (int64_t start = first_tile; start < end; start += kTile) {
    const bool is_last = start + kTile >= end;
    const bool starts_split = start == first_tile || start % kAttentionSplit == 0;
    const bool ends_split = is_last || (start + kTile) % kAttentionSplit == 0;
    for (int64_t h = 0; h < item.num_kv_heads; ++h) {
      const HeadState& head = s.head[h];
      const bool last_head = h + 1 == item.num_kv_heads;
      if (!last_head)
        cache.next_head(*now, *next);
      else if (!is_last)
        cache.find(start + kTile, begin, end, *next);
      if (starts_split) start_split(head, rows);
      Tile<T> tile(*now, last_head && is_last ? nullptr : next, p);
      attend_tile<T>(p, rows, s, head, tile);
      if (ends_split && !one_split) {
        const int64_t split = start / kAttentionSplit;
        end_split(head, rows, whole ? nullptr : partial_of(item, rows, split, h, record, partials), record);
      }
      TileRows<T>* done = now;
      now = next;
      next = done;
    }
  }
  if (!whole) return;
  for (int64_t h = 0; h < item.num_kv_heads; ++h) {
    const HeadState& head = s.head[h];
    finish_rows(p, item, rows, h, one_split ? head.acc : head.total, one_split ? head.max : head.total_max,
                one_split ? head.sum : head.total_sum);
  }
}

void attend_item(const AttentionParams& p, const AttentionItem& item, float* partials, float* scratch) {
  switch (p.cache_dtype) {
    case DType::f16:
      return attend<F16>(p, item, partials, scratch);
    case DType::bf16:
      return attend<BF16>(p, item, partials, scratch);
    default:
      return attend<float>(p, item, partials, scratch);
  }
}

void merge_item(const AttentionParams& p, const AttentionItem& item, float* partials) {
  const Rows rows = rows_of(p, item);
  const int64_t record = attention_partial_floats(p.value_dim);
  const int64_t token = p.cu_seqlens_q[item.request] + item.first_query;
  for (int64_t h = 0; h < item.num_kv_heads; ++h) {
    for (int64_t r = 0; r < rows.count; ++r) {
      alignas(64) float total[kAttentionMaxHeadDim];
      memset(total, 0, rows.padded * sizeof(float));
      float max = kNegativeInfinity, sum = 0.0f;
      for (int64_t split = item.first_split; split < item.end_split; ++split) {
        const float* partial = partial_of(item, rows, split, h, record, partials) + r * record;
        fold_row(total, &max, &sum, partial, partial[record - 2], partial[record - 1], rows.padded);
      }
      finish_row(p, total, max, sum, token + r / rows.group,
                 (item.first_kv_head + h) * rows.group + r % rows.group);
    }
  }
}

// out = prefix * w_prefix + suffix * w_suffix, the weights from the log-sum-exps.
void merge_states(const MergeStatesParams& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const int64_t token = row / p.num_heads, head = row % p.num_heads;
    const float prefix_lse =
        p.prefix_lse[token * p.prefix_lse_stride_token + head * p.prefix_lse_stride_head];
    const float suffix_lse =
        p.suffix_lse[token * p.suffix_lse_stride_token + head * p.suffix_lse_stride_head];
    const float* prefix = p.prefix + token * p.prefix_stride_token + head * p.prefix_stride_head;
    const float* suffix = p.suffix + token * p.suffix_stride_token + head * p.suffix_stride_head;
    float* out = p.out + token * p.out_stride_token + head * p.out_stride_head;
    const float max = prefix_lse > suffix_lse ? prefix_lse : suffix_lse;
    const V safe = vset(finite_or_zero(max));
    const float a = vexp(vset(prefix_lse) - safe)[0], b = vexp(vset(suffix_lse) - safe)[0];
    const float sum = a + b;
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    const float wa = a * inverse, wb = b * inverse;
    if (wa == 0.0f ||
        wb == 0.0f) {  // a side of weight 0 is not read: what an empty row holds is its owner's affair
      const float* only = wa != 0.0f ? prefix : suffix;
      for (int64_t d = 0; d < p.head_dim; ++d) out[d] = sum == 0.0f ? 0.0f : only[d];
    } else {
      int64_t d = 0;
      for (; d + kWidth <= p.head_dim; d += kWidth)
        vstore(out + d, vfma(vload(prefix + d), vset(wa), vload(suffix + d) * vset(wb)));
      for (; d < p.head_dim; ++d) out[d] = __builtin_fmaf(prefix[d], wa, suffix[d] * wb);
    }
    if (p.out_lse) {
      p.out_lse[token * p.out_lse_stride_token + head * p.out_lse_stride_head] =
          sum == 0.0f ? kNegativeInfinity : max + __builtin_logf(sum);
    }
  }
}

}  // namespace

const AttentionKernels attention_kernels{attend_item, merge_item, merge_states};

}  // namespace inferx::cpu::INFERX_ISA
