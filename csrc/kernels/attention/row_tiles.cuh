// Which rows of which request a CTA takes, without the host knowing any length.
//
// The query rows of one KV head of a request are packed: row = query * group + head of the group.  Tiles of
// `rows` packed rows are numbered through all requests; request b's tiles start at
// floor(cu_seqlens_q[b] * group / rows) + b.  That leaves it room for ceil(q_len * group / rows) tiles and at
// most one more, so a grid of row_tile_bound() holds all of them, and a binary search finds the request.
#pragma once
#include "kernels/attention/params.h"
#include "simt/simt.h"

namespace inferx::cuda {

struct RowTile {
  int request;
  int tile;             // within the request
  int64_t first_query;  // its first query among all tokens
  int q_len, seq_len;   // clamped: queries exist, and keys have an entry in block_tables
  int rows;             // q_len * group; 0 where the arrays make no sense
};

inline int64_t row_tile_bound(const PagedAttentionParams& p, int rows) {
  return p.num_tokens * (p.num_heads / p.num_kv_heads) / rows + p.batch;
}

SIMT_DEV RowTile find_row_tile(const PagedAttentionParams& p, int64_t index, int group, int rows) {
  int low = 0, high = static_cast<int>(p.batch) - 1;
  const auto start = [&](int b) { return static_cast<int64_t>(p.cu_seqlens_q[b]) * group / rows + b; };
  while (low < high) {  // the last request that starts at or before index
    const int middle = (low + high + 1) / 2;
    if (start(middle) <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int64_t begin = min(max(static_cast<int64_t>(p.cu_seqlens_q[low]), int64_t{0}), p.num_tokens);
  const int64_t end = min(max(static_cast<int64_t>(p.cu_seqlens_q[low + 1]), begin), p.num_tokens);
  const int64_t capacity =
      min(p.max_blocks * p.block_size, int64_t{INT32_MAX - 1024});  // ends of tiles fit an int
  const int64_t keys = min(static_cast<int64_t>(p.seq_lens[low]), capacity);
  RowTile t;
  t.request = low;
  t.tile = static_cast<int>(max(index - start(low), int64_t{0}));
  t.first_query = begin;
  t.q_len = static_cast<int>(end - begin);
  t.seq_len = static_cast<int>(max(keys, int64_t{0}));
  t.rows = t.q_len * group;
  return t;
}

// The keys [first, end) that one query of a request sees.
struct KeyRange {
  int first, end;
};

SIMT_DEV KeyRange visible_keys(const PagedAttentionParams& p, int q_len, int seq_len, int query) {
  if (!p.causal) return {0, seq_len};
  const int end = seq_len - q_len + query + 1;
  const int64_t first = p.window > 0 ? end - p.window : 0;
  return {static_cast<int>(max(first, int64_t{0})), max(end, 0)};
}

}  // namespace inferx::cuda
