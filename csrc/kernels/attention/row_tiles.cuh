// Which rows of which request a CTA takes, without the host knowing any length.
//
// The query rows of one KV head of a request are packed: row = query * group + head of the group.  Tiles of
// `rows` packed rows are numbered through all requests; request b's tiles start at
// floor(cu_seqlens_q[b] * group / rows) + b.  That leaves it room for ceil(q_len * group / rows) tiles and at
// most one more, so a grid of row_tile_bound() holds all of them, and a binary search finds the request.
#pragma once
#include "kernels/attention/params.h"
#include "kernels/attention/request.cuh"
#include "simt/simt.h"

namespace inferx::cuda {

struct RowTile {
  int batch_index;
  Request request;
  int tile;  // of the request's tiles; may lie past its rows
  int rows;  // q_len * group
};

__host__ __device__ inline int64_t row_tile_bound(const PagedAttentionParams& p, int rows) {
  return p.num_tokens * (p.num_heads / p.num_kv_heads) / rows + p.batch;
}

SIMT_DEV RowTile find_row_tile(const PagedAttentionParams& p, int64_t index, int group, int rows) {
  int low = 0, high = static_cast<int>(p.batch) - 1;
  const auto start = [&](int b) { return int64_t{first_token(p, b)} * group / rows + b; };
  while (low < high) {  // the last request that starts at or before index
    const int middle = (low + high + 1) / 2;
    if (start(middle) <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const Request request = load_request(p, low);
  const int64_t tile = index - start(low);
  const int packed = request.q_len * group;
  // What lies before the first request, where cu_seqlens_q does not begin at 0, has no rows.
  return {low, request, tile < 0 ? (packed + rows - 1) / rows : static_cast<int>(tile), packed};
}

}  // namespace inferx::cuda
