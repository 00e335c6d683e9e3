// Bound by memory.  As reshape_and_cache.cu: a thread holds one column, a vector of the latent vector or of
// the rotary key, for several tokens, and all loads are in flight before the slots are known.
#include "kernels/cache_rows.cuh"
#include "kernels/concat_and_cache_mla.h"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 256;
constexpr int kTokens = 4;  // loads in flight per thread: 2,048 threads x 4 x 16 B on an SM cover the latency

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    concat_and_cache_mla_kernel(const __grid_constant__ ConcatAndCacheMlaParams p, FastDiv block_size) {
  SHARED(int64_t, offsets, [kThreads / 32 * kTokens]);  // of each of the CTA's tokens, in the cache

  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  const bool active = column < p.input[0].length + p.input[1].length;
  const int which = column >= p.input[0].length;
  const int64_t element = which ? column - p.input[0].length : column;

  const int64_t cta_token = static_cast<int64_t>(blockIdx.x) * blockDim.y * kTokens;
  const int64_t first = cta_token + threadIdx.y * kTokens;
  const T* from = static_cast<const T*>(p.input[which].data) + element;
  Packed<T, N> values[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (active && first + i < p.num_tokens)
      values[i] = load_packed<N>(from + (first + i) * p.input[which].stride_token);
  }

  const CacheRows cache{p.kv_cache, p.cache_stride_block, p.cache_stride_slot, 0};
  for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < static_cast<int>(blockDim.y) * kTokens;
       i += blockDim.x * blockDim.y) {
    const int64_t slot = cta_token + i < p.num_tokens ? p.slot_mapping[cta_token + i] : -1;
    offsets[i] = slot_offset(slot, p.num_slots, block_size, cache);
  }
  __syncthreads();
  if (!active) return;

  T* const to = static_cast<T*>(p.kv_cache) + column;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int64_t at = offsets[threadIdx.y * kTokens + i];
    if (at >= 0) store_packed(to + at, values[i]);
  }
}

// Whether n elements at a time of all rows are aligned to their size.
bool fits(const ConcatAndCacheMlaParams& p, int64_t n) {
  const size_t item = dtype_size(p.dtype);
  for (const MlaRows& rows : p.input) {
    if (rows.length == 0) continue;
    if (rows.length % n != 0 ||
        !rows_fit(TokenRows{const_cast<void*>(rows.data), rows.stride_token, 0}, n, item))
      return false;
  }
  return rows_fit(CacheRows{p.kv_cache, p.cache_stride_block, p.cache_stride_slot, 0}, n, item);
}

template <class T, int N>
Error launch_vectors(const ConcatAndCacheMlaParams& p, void* stream) {
  const TokenGrid g =
      token_grid((p.input[0].length + p.input[1].length) / N, p.num_tokens, kThreads, kTokens);
  if (!g.valid || p.num_slots > INT32_MAX) return kInvalidValue;
  return launch(concat_and_cache_mla_kernel<T, N>, g.grid, g.block, 0, stream, p,
                FastDiv(static_cast<uint32_t>(p.block_size)));
}

}  // namespace

Error launch_concat_and_cache_mla(const ConcatAndCacheMlaParams& p, void* stream) {
  if (p.num_tokens == 0 || p.num_slots == 0 || p.input[0].length + p.input[1].length == 0) return kSuccess;
  return dispatch_float(p.dtype, [&](auto type) {
    using T = decltype(type);
    constexpr int kWide = 16 / sizeof(T);
    return fits(p, kWide) ? launch_vectors<T, kWide>(p, stream) : launch_vectors<T, 1>(p, stream);
  });
}

}  // namespace inferx::cuda
