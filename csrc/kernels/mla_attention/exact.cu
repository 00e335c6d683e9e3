// Latent attention in float32 arithmetic: what float32 models run on, and 16-bit ones whose dimensions the
// tensor core kernel does not have.  A CTA takes 8 packed query rows and walks over the keys in tiles of 16,
// counted from position 0, so that a row's bits depend on that row alone.  A tile of cache rows is brought to
// shared memory once and used twice: as keys, a thread a row and key; as values, a thread four columns.
#include "kernels/attention/row_tiles.cuh"
#include "kernels/dtype_dispatch.h"
#include "kernels/mla_attention/params.h"
#include "simt/simt.h"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kRows = 8, kKeys = 16;
constexpr int kThreads = kRows * kKeys;
constexpr int kMaxDim = 1024;
constexpr int kPartColumns = kThreads * 4;  // of the output, at a time

// Rows of keys in shared memory: an odd number of vectors, so that 8 keys lie in different banks.
SIMT_DEV int key_stride(int dim) { return dim + 4; }
int shared_bytes(int dim) { return (kRows * dim + kKeys * (dim + 4)) * 4; }

// Where a key lies in the cache; -1: no row of the tile sees it, or its block does not exist.
SIMT_DEV int64_t find_key(const MlaAttentionParams& p, const int32_t* table, int key, int end) {
  if (key >= end) return -1;
  const int block_size = static_cast<int>(p.block_size);
  const int64_t block = table[key / block_size];
  if (block < 0 || block >= p.num_blocks) return -1;
  return block * p.key_stride_block + key % block_size * p.key_stride_slot;
}

// A row of the cache or of query as float32, by one warp; null: zeros.
template <class T>
SIMT_DEV void load_row(float* to, const T* from, int dim) {
#pragma unroll 4
  for (int d = lane_id(); d < dim; d += 32) to[d] = from == nullptr ? 0.0f : to_float(from[d]);
}

SIMT_DEV float dot(const float* a, const float* b, int dim) {
  float sum = 0;
#pragma unroll 4
  for (int d = 0; d < dim; d += 4) {
    const float4 x = *reinterpret_cast<const float4*>(a + d), y = *reinterpret_cast<const float4*>(b + d);
    sum = fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
  }
  return sum;
}

template <class T, class Cache, int kParts>
__global__ void __launch_bounds__(kThreads, 4)
    mla_attention_exact_kernel(const __grid_constant__ MlaAttentionParams p) {
  DYN_SHARED(smem, 16);
  SHARED(float, weights, [kRows][kKeys]);
  SHARED(float, factors, [kRows]);  // of what has been summed: the correction, at the end 1 / sum
  const int heads = static_cast<int>(p.num_heads), dim = static_cast<int>(p.head_dim);
  const int value_dim = static_cast<int>(p.value_dim), stride = key_stride(dim);
  float* queries = reinterpret_cast<float*>(smem);
  float* keys = queries + kRows * dim;

  const RowTile t = find_row_tile(p, blockIdx.x, heads, kRows);
  const int first_row = t.tile * kRows, num_rows = min(t.rows - first_row, kRows);
  if (num_rows <= 0) return;  // the whole CTA
  const int warp = threadIdx.x / 32, tid = threadIdx.x;
  const auto token_of = [&](int r) -> int64_t { return t.request.first_token + (first_row + r) / heads; };
  const auto head_of = [&](int r) { return (first_row + r) % heads; };
  for (int r = warp; r < kRows; r += kThreads / 32) {
    const T* from = static_cast<const T*>(p.query) + token_of(r) * p.query_stride_token +
                    head_of(r) * p.query_stride_head;
    load_row(queries + r * dim, r < num_rows ? from : nullptr, dim);
  }

  const int row = tid / kKeys, slot = tid % kKeys;  // of this thread's score
  const bool exists = row < num_rows;
  const int row_end = exists ? visible_keys(p, t.request, (first_row + row) / heads).end : 0;
  const int end = visible_keys(p, t.request, (first_row + num_rows - 1) / heads).end;
  const int32_t* table = p.block_tables + t.batch_index * p.block_tables_stride;
  float largest = -INFINITY, sum = 0;  // sum: over this thread's keys
  float out[kParts][kRows][4] = {};
  for (int first_key = 0; first_key < end; first_key += kKeys) {
    __syncthreads();  // the tile before has been used
    for (int key = warp; key < kKeys; key += kThreads / 32) {
      const int64_t offset = find_key(p, table, first_key + key, end);
      const Cache* from = static_cast<const Cache*>(p.key_cache) + offset;
      load_row(keys + key * stride, offset < 0 ? nullptr : from, dim);
    }
    __syncthreads();

    const bool seen = find_key(p, table, first_key + slot, row_end) >= 0;
    const float score = seen ? dot(queries + row * dim, keys + slot * stride, dim) * p.scale : -INFINITY;
    float top = fmaxf(largest, score);
    for (int o = 1; o < kKeys; o *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
    const float correction = largest == top ? 1.0f : expf(largest - top);
    const float weight = score == -INFINITY ? 0.0f : expf(score - top);
    sum = sum * correction + weight;
    largest = top;
    weights[row][slot] = weight;
    if (slot == 0) factors[row] = correction;
    __syncthreads();

#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int column = part * kPartColumns + tid * 4;
      if (column >= value_dim) continue;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[part][r][i] *= factors[r];
      }
#pragma unroll 4
      for (int key = 0; key < kKeys; ++key) {
        const float4 value = *reinterpret_cast<const float4*>(keys + key * stride + column);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const float w = weights[r][key];
          if (w == 0) continue;  // a value that a row does not see may be NaN
          out[part][r][0] = fmaf(w, value.x, out[part][r][0]);
          out[part][r][1] = fmaf(w, value.y, out[part][r][1]);
          out[part][r][2] = fmaf(w, value.z, out[part][r][2]);
          out[part][r][3] = fmaf(w, value.w, out[part][r][3]);
        }
      }
    }
  }

  for (int o = 1; o < kKeys; o *= 2) sum += __shfl_xor_sync(~0u, sum, o);
  __syncthreads();  // the last corrections have been used
  if (slot == 0) {
    const float r = fast_rcp(sum);  // a division would be a call, before which accumulators are spilled
    factors[row] = sum == 0 ? 0.0f : fmaf(r, fmaf(-sum, r, 1.0f), r);
    if (p.lse != nullptr && exists) {
      p.lse[token_of(row) * p.lse_stride_token + head_of(row) * p.lse_stride_head] =
          sum == 0 ? -INFINITY : largest + logf(sum);
    }
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= num_rows) continue;
    T* to = static_cast<T*>(p.out) + token_of(r) * p.out_stride_token + head_of(r) * p.out_stride_head;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int column = part * kPartColumns + tid * 4;
      if (column >= value_dim) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) to[column + i] = from_float<T>(out[part][r][i] * factors[r]);
    }
  }
}

template <class T, class Cache>
Error launch_types(const MlaAttentionParams& p, void* stream) {
  const dim3 grid(static_cast<unsigned>(row_tile_bound(p, kRows))), block(kThreads);
  const int shared = shared_bytes(static_cast<int>(p.head_dim));
  if (p.value_dim <= kPartColumns)
    return launch(mla_attention_exact_kernel<T, Cache, 1>, grid, block, shared, stream, p);
  return launch(mla_attention_exact_kernel<T, Cache, 2>, grid, block, shared, stream, p);
}

}  // namespace

Error launch_mla_attention_exact(const MlaAttentionParams& p, void* stream) {
  if (p.num_tokens == 0 || p.batch == 0) return kSuccess;
  if (p.head_dim > kMaxDim || p.value_dim > p.head_dim) return kInvalidValue;
  if (p.dtype == DType::f32) {
    return dispatch_float(p.cache_dtype,
                          [&](auto cache) { return launch_types<float, decltype(cache)>(p, stream); });
  }
  if (p.dtype != p.cache_dtype) return kInvalidValue;
  if (p.dtype == DType::bf16) return launch_types<__nv_bfloat16, __nv_bfloat16>(p, stream);
  return p.dtype == DType::f16 ? launch_types<__half, __half>(p, stream) : kInvalidValue;
}

}  // namespace inferx::cuda
