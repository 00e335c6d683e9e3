// Attention in float32 arithmetic: what float32 models run on, and what the tensor core kernels are compared
// with.  A CTA takes 8 packed query rows of one KV head; its four warps take every fourth tile of 32 keys,
// counted from position 0, and are merged in order, so that a row's bits depend on that row alone.
#include "kernels/attention/params.h"
#include "kernels/attention/row_tiles.cuh"
#include "kernels/dtype_dispatch.h"
#include "simt/simt.h"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kRows = 8;   // 4 lanes a row in the softmax
constexpr int kKeys = 32;  // a lane a key in Q K^T
constexpr int kWarps = 4;
constexpr int kSlice = 32;  // elements of head_dim of the keys in shared memory at a time
constexpr int kVec = kSlice / 4;
constexpr int kLanesPerRow = 32 / kRows;

// What one warp keeps in shared memory.
struct alignas(16) WarpTile {
  float4 keys[kKeys][kVec + 1];  // one vector of padding: lanes read different rows, in different banks
  float weights[kRows][kKeys];   // scores, then softmax weights
  float correction[kRows];
  int64_t key_offset[kKeys];  // -1: no row sees it
  int64_t value_offset[kKeys];
};

// Where the keys of a tile lie; those outside [first, end) or in a block that does not exist are left out.
SIMT_DEV void locate_keys(const PagedAttentionParams& p, WarpTile& w, const int32_t* table, int kv_head,
                          int begin, int first, int end) {
  const int lane = lane_id(), key = begin + lane, block_size = static_cast<int>(p.block_size);
  int64_t key_offset = -1, value_offset = -1;
  if (key >= first && key < end) {
    const int64_t block = table[key / block_size], slot = key % block_size;
    if (block >= 0 && block < p.num_blocks) {
      key_offset = block * p.key_stride_block + slot * p.key_stride_slot + kv_head * p.key_stride_head;
      value_offset =
          block * p.value_stride_block + slot * p.value_stride_slot + kv_head * p.value_stride_head;
    }
  }
  w.key_offset[lane] = key_offset;
  w.value_offset[lane] = value_offset;
}

// The lane's key times each of the rows.
template <class T>
SIMT_DEV void scores_of_key(const PagedAttentionParams& p, WarpTile& w, const float4* query, int query_stride,
                            float (&score)[kRows]) {
  const int lane = lane_id(), dim = static_cast<int>(p.head_dim);
  const T* cache = static_cast<const T*>(p.key_cache);
  for (int r = 0; r < kRows; ++r) score[r] = 0;
#pragma unroll 1
  for (int begin = 0; begin < dim; begin += kSlice) {
    __syncwarp();  // the slice before has been read
    const int d = begin + lane;
#pragma unroll 4
    for (int key = 0; key < kKeys; ++key) {
      const int64_t offset = w.key_offset[key];
      const bool there = offset >= 0 && d < dim;
      reinterpret_cast<float*>(w.keys[key])[lane] = there ? to_float(cache[offset + d]) : 0.0f;
    }
    __syncwarp();
    for (int c = 0; c < kVec; ++c) {
      const float4 k = w.keys[lane][c];
      for (int r = 0; r < kRows; ++r) {
        const float4 q = query[r * query_stride + begin / 4 + c];
        score[r] = fmaf(q.w, k.w, fmaf(q.z, k.z, fmaf(q.y, k.y, fmaf(q.x, k.x, score[r]))));
      }
    }
  }
}

// 1 / x without the call that a division becomes, before which the accumulators would be spilled.
SIMT_DEV float reciprocal(float x) {
  const float r = __fdividef(1.0f, x);
  return fmaf(r, fmaf(-x, r, 1.0f), r);
}

// A row's softmax so far; each of its lanes keeps the sum over its own keys.
struct RowState {
  float max, sum;
};

// Turns the row's scores in w.weights into weights, relative to the largest score so far.
SIMT_DEV void update_row(WarpTile& w, RowState& state) {
  const int row = lane_id() / kLanesPerRow, part = lane_id() % kLanesPerRow;
  constexpr int kEach = kKeys / kLanesPerRow;
  float* scores = &w.weights[row][part * kEach];
  float largest = state.max;
  for (int i = 0; i < kEach; ++i) largest = fmaxf(largest, scores[i]);
  for (int o = 1; o < kLanesPerRow; o *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, o));
  const float correction = state.max == largest ? 1.0f : expf(state.max - largest);
  float sum = state.sum * correction;
  for (int i = 0; i < kEach; ++i) {
    const float weight = scores[i] == -INFINITY ? 0.0f : expf(scores[i] - largest);
    scores[i] = weight;
    sum += weight;
  }
  state = {largest, sum};
  if (part == 0) w.correction[row] = correction;
}

// out[row][i] is element lane + 32 i of the row.
template <class T, int kParts>
SIMT_DEV void add_values(const PagedAttentionParams& p, const WarpTile& w, float (&out)[kRows][kParts]) {
  const int lane = lane_id(), dim = static_cast<int>(p.head_dim);
  const T* cache = static_cast<const T*>(p.value_cache);
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kParts; ++i) out[r][i] *= w.correction[r];
  }
#pragma unroll 4
  for (int key = 0; key < kKeys; ++key) {
    const int64_t offset = w.value_offset[key];
    if (offset < 0) continue;
    float value[kParts];
    for (int i = 0; i < kParts; ++i) {
      const int d = lane + 32 * i;
      value[i] = d < dim ? to_float(cache[offset + d]) : 0.0f;
    }
    for (int r = 0; r < kRows; ++r) {
      const float weight = w.weights[r][key];
      if (weight == 0) continue;  // a value that a row does not see may be NaN
      for (int i = 0; i < kParts; ++i) out[r][i] = fmaf(weight, value[i], out[r][i]);
    }
  }
}

template <class T, int kParts>
__global__ void __launch_bounds__(kWarps * 32, 2)
    attention_exact_kernel(const __grid_constant__ PagedAttentionParams p) {
  constexpr int kDim = kParts * 32;
  SHARED(WarpTile, tiles, [kWarps]);
  SHARED(float4, query, [kRows][kDim / 4]);  // at the end the sum of the warps' outputs
  SHARED(RowState, states, [kWarps][kRows]);
  SHARED(RowState, totals, [kRows]);

  const int kv_heads = static_cast<int>(p.num_kv_heads), group = static_cast<int>(p.num_heads) / kv_heads;
  const int kv_head = blockIdx.x % kv_heads, dim = static_cast<int>(p.head_dim);
  const int warp = threadIdx.x / 32, lane = lane_id();
  const float inverse_cap = p.softcap > 0 ? 1.0f / p.softcap : 0.0f;
  const RowTile t = find_row_tile(p, blockIdx.x / kv_heads, group, kRows);
  const int first_row = t.tile * kRows, num_rows = min(t.rows - first_row, kRows);
  if (num_rows <= 0) return;  // the whole CTA

  const auto query_of = [&](int r) { return (first_row + r) / group; };
  const auto head_of = [&](int r) { return kv_head * group + (first_row + r) % group; };
  for (int i = threadIdx.x; i < kRows * kDim; i += kWarps * 32) {
    const int r = i / kDim, d = i % kDim;
    float value = 0;
    if (r < num_rows && d < dim) {
      value =
          static_cast<const float*>(p.query)[(t.request.first_token + query_of(r)) * p.query_stride_token +
                                             head_of(r) * p.query_stride_head + d];
    }
    reinterpret_cast<float*>(query[r])[d] = value;
  }
  __syncthreads();

  KeySpan visible[kRows];
  for (int r = 0; r < kRows; ++r) {
    visible[r] = r < num_rows ? visible_keys(p, t.request, query_of(r)) : KeySpan{0, 0};
  }
  const int first = visible[0].begin, end = visible_keys(p, t.request, query_of(num_rows - 1)).end;
  const int32_t* table = p.block_tables + t.batch_index * p.block_tables_stride;
  WarpTile& w = tiles[warp];
  RowState state{-INFINITY, 0};
  float out[kRows][kParts] = {};
  for (int tile = first / kKeys; tile * kKeys < end; ++tile) {
    if (tile % kWarps != warp) continue;
    __syncwarp();  // the tile before has been read
    locate_keys(p, w, table, kv_head, tile * kKeys, first, end);
    float score[kRows];
    scores_of_key<T>(p, w, query[0], kDim / 4, score);
    const int key = tile * kKeys + lane;
    for (int r = 0; r < kRows; ++r) {
      float s = score[r] * p.scale;
      if (p.softcap > 0) s = p.softcap * tanhf(s * inverse_cap);
      const bool seen = w.key_offset[lane] >= 0 && key >= visible[r].begin && key < visible[r].end;
      w.weights[r][lane] = seen ? s : -INFINITY;
    }
    __syncwarp();
    update_row(w, state);
    __syncwarp();
    add_values<T, kParts>(p, w, out);
  }

  for (int o = 1; o < kLanesPerRow; o *= 2) state.sum += __shfl_xor_sync(~0u, state.sum, o);
  if (lane % kLanesPerRow == 0) states[warp][lane / kLanesPerRow] = state;
  __syncthreads();
  if (threadIdx.x < kRows) {
    const int r = threadIdx.x;
    const float sink = p.sinks != nullptr && r < num_rows ? p.sinks[head_of(r)] : -INFINITY;
    float largest = sink;
    for (int i = 0; i < kWarps; ++i) largest = fmaxf(largest, states[i][r].max);
    float sum = sink == -INFINITY ? 0.0f : expf(sink - largest);
    for (int i = 0; i < kWarps; ++i) {
      if (states[i][r].sum != 0) sum = fmaf(states[i][r].sum, expf(states[i][r].max - largest), sum);
    }
    totals[r] = {largest, sum};
  }
  __syncthreads();
  for (int turn = 0; turn < kWarps; ++turn) {  // in order, so that the sum has one order
    if (warp == turn) {
      for (int r = 0; r < kRows; ++r) {
        const float factor = states[warp][r].sum == 0
                                 ? 0.0f
                                 : expf(states[warp][r].max - totals[r].max) * reciprocal(totals[r].sum);
        for (int i = 0; i < kParts; ++i) {
          float& sum = reinterpret_cast<float*>(query[r])[lane + 32 * i];
          sum = fmaf(out[r][i], factor, turn == 0 ? 0.0f : sum);
        }
      }
    }
    __syncthreads();
  }
  for (int r = warp; r < num_rows; r += kWarps) {
    const int64_t token = t.request.first_token + query_of(r);
    float* row = static_cast<float*>(p.out) + token * p.out_stride_token + head_of(r) * p.out_stride_head;
    for (int d = lane; d < dim; d += 32) row[d] = reinterpret_cast<float*>(query[r])[d];
    if (p.lse != nullptr && lane == 0) {
      p.lse[token * p.lse_stride_token + head_of(r) * p.lse_stride_head] =
          totals[r].sum == 0 ? -INFINITY : totals[r].max + logf(totals[r].sum);
    }
  }
}

template <class T>
Error launch_exact(const PagedAttentionParams& p, void* stream) {
  const dim3 grid(row_tile_bound(p, kRows) * p.num_kv_heads), block(kWarps * 32);
  if (p.head_dim <= 64) return launch(attention_exact_kernel<T, 2>, grid, block, 0, stream, p);
  if (p.head_dim <= 128) return launch(attention_exact_kernel<T, 4>, grid, block, 0, stream, p);
  return launch(attention_exact_kernel<T, 8>, grid, block, 0, stream, p);
}

}  // namespace

Error launch_paged_attention_exact(const PagedAttentionParams& p, void* stream) {
  if (p.num_tokens == 0 || p.num_heads == 0 || p.batch == 0) return kSuccess;
  if (p.dtype != DType::f32 || p.head_dim > 256) return kInvalidValue;
  return dispatch_float(p.cache_dtype,
                        [&](auto element) { return launch_exact<decltype(element)>(p, stream); });
}

}  // namespace inferx::cuda
