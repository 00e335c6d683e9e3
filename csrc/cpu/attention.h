// Paged attention on the CPU: what the binding fills in, and the pieces that the planner hands to the
// kernels.
//
// Keys are reduced in tiles of kAttentionTile and splits of kAttentionSplit keys, both counted from position
// 0 of the request.  A split's partial result depends only on the query row and on the keys of that split,
// and partials are folded in order, so that a row's bits do not depend on how the work was cut up.
#pragma once
#include <cstdint>

#include "dtype.h"

namespace inferx::cpu {

// Keys per softmax step.  64 keeps a tile of K and V (64 KiB each at most) in the second-level cache while
// the accumulators are rescaled only once per 64 keys.
constexpr int kAttentionTile = 64;
// Keys per partial result: short enough to spread one 8 k context over many cores, long enough that writing
// and folding partials (2 x head_dim floats) is below 1 % of reading the keys.
constexpr int kAttentionSplit = 512;
// Query rows (query positions x heads of one KV head) that share each K and V tile.  The packing of a tile
// costs about as much as 6 rows' worth of multiplies.
constexpr int kAttentionRows = 192;
// Floats of these rows' queries and accumulators: half of a small second-level cache.  Rows longer than those
// of heads of 256 are fewer.
constexpr int kAttentionRowFloats = kAttentionRows * 512;
// KV heads of one item, so that whole rows of the cache are read where a token's heads lie side by side.
constexpr int kAttentionItemHeads = 8;
constexpr int kAttentionMaxHeadDim = 1024;  // of the kernels; paged_attention's own limit is 256

struct AttentionParams {
  const float* query;  // [T, num_heads, head_dim]
  int64_t query_stride_token, query_stride_head;
  const void* key_cache;  // [num_blocks, block_size, num_kv_heads, head_dim]
  int64_t key_stride_block, key_stride_slot, key_stride_head;
  const void*
      value_cache;  // [num_blocks, block_size, num_kv_heads, value_dim]; may be the beginnings of the keys
  int64_t value_stride_block, value_stride_slot, value_stride_head;
  DType cache_dtype;
  const int32_t* block_tables;  // [batch, max_blocks]
  int64_t block_tables_stride;
  const int32_t* cu_seqlens_q;  // [batch + 1]
  const int32_t* seq_lens;      // [batch]
  int64_t batch, num_heads, num_kv_heads, head_dim, value_dim, block_size;
  float scale, softcap;  // softcap 0: none
  int64_t window;        // 0: none
  const float* sinks;    // [num_heads] or null
  float* out;            // [T, num_heads, value_dim]
  int64_t out_stride_token, out_stride_head;
  float* lse;  // [T, num_heads] or null
  int64_t lse_stride_token, lse_stride_head;
};

// Queries [first_query, first_query + num_queries) of one request with the query heads of some KV heads, over
// the keys of splits [first_split, end_split).  With `partial` < 0 the item writes `out`; otherwise the state
// of each split, head and row goes to partials[partial + ((split - first_split) * num_kv_heads + head) * rows
// + row) * attention_partial_floats(value_dim)], with rows = num_queries x num_heads / num_kv_heads of the
// op.
struct AttentionItem {
  int64_t request, first_kv_head, num_kv_heads, first_query, num_queries, first_split, end_split, partial;
};

// Accumulator rows are padded to the widest vector.
constexpr int64_t attention_padded_dim(int64_t dim) { return (dim + 15) / 16 * 16; }
// One row of a partial result: the accumulator, then maximum and sum (padded to keep rows aligned).
constexpr int64_t attention_partial_floats(int64_t value_dim) { return attention_padded_dim(value_dim) + 16; }
// What one thread needs, in floats, for items of at most so many rows per KV head and KV heads.
constexpr int64_t attention_scratch_floats(int64_t head_dim, int64_t value_dim, int64_t rows, int64_t heads) {
  const int64_t key = attention_padded_dim(head_dim), value = attention_padded_dim(value_dim);
  const int64_t padded_rows = (rows + 15) / 16 * 16 + 16;
  return padded_rows * (kAttentionTile + 4 + heads * (key + 2 * value + 4)) + kAttentionTile * (key + value);
}

void paged_attention(const AttentionParams& params);

// Two attention results over disjoint keys, [T, num_heads, head_dim] and log-sum-exps [T, num_heads], into
// one. `out` may be `prefix` or `suffix`.
struct MergeStatesParams {
  const float *prefix, *suffix, *prefix_lse, *suffix_lse;
  float *out, *out_lse;  // out_lse may be null
  int64_t prefix_stride_token, prefix_stride_head, suffix_stride_token, suffix_stride_head;
  int64_t prefix_lse_stride_token, prefix_lse_stride_head, suffix_lse_stride_token, suffix_lse_stride_head;
  int64_t out_stride_token, out_stride_head, out_lse_stride_token, out_lse_stride_head;
  int64_t num_tokens, num_heads, head_dim;
};
void merge_attn_states(const MergeStatesParams& params);

}  // namespace inferx::cpu
