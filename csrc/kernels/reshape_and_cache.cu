// Bound by memory.  A thread holds one column, a vector of one head of the key or the value, for several
// tokens: what the column is costs a division once, and all loads are in flight before the slots are known.
#include "kernels/cache_rows.cuh"
#include "kernels/reshape_and_cache.h"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 256;
constexpr int kTokens = 4;  // loads in flight per thread: 2,048 threads x 4 x 16 B on an SM cover the latency

template <class In, class Out, int N>
__global__ void __launch_bounds__(kThreads)
    reshape_and_cache_kernel(const __grid_constant__ ReshapeAndCacheParams p, FastDiv block_size) {
  SHARED(int64_t, offsets, [kThreads / 32 * kTokens][2]);  // of each of the CTA's tokens, in both caches

  const uint32_t per_head = static_cast<uint32_t>(p.head_dim / N);
  const uint32_t per_tensor = static_cast<uint32_t>(p.num_heads) * per_head;
  const uint32_t column = blockIdx.y * blockDim.x + threadIdx.x;
  const bool active = column < 2 * per_tensor;
  const int which = column >= per_tensor;
  const uint32_t rest = column - which * per_tensor;
  const int64_t head = rest / per_head;
  const int64_t element = (rest - head * per_head) * N;

  const int64_t cta_token = static_cast<int64_t>(blockIdx.x) * blockDim.y * kTokens;
  const int64_t first = cta_token + threadIdx.y * kTokens;
  const TokenRows& input = p.input[which];
  const In* from = static_cast<const In*>(input.data) + head * input.stride_head + element;
  Packed<In, N> values[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    if (active && first + i < p.num_tokens)
      values[i] = load_packed<N>(from + (first + i) * input.stride_token);
  }

  for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < static_cast<int>(blockDim.y) * kTokens;
       i += blockDim.x * blockDim.y) {
    const int64_t slot = cta_token + i < p.num_tokens ? p.slot_mapping[cta_token + i] : -1;
    offsets[i][0] = slot_offset(slot, p.num_slots, block_size, p.cache[0]);
    offsets[i][1] = slot_offset(slot, p.num_slots, block_size, p.cache[1]);
  }
  __syncthreads();
  if (!active) return;

  const CacheRows& cache = p.cache[which];
  Out* const to = static_cast<Out*>(cache.data) + head * cache.stride_head + element;
  const ToCache<In, Out> to_cache(p.scale[which], head);
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const int64_t at = offsets[threadIdx.y * kTokens + i][which];
    if (at >= 0) store_packed(to + at, to_cache(values[i]));
  }
}

template <class In, class Out, int N>
Error launch_vectors(const ReshapeAndCacheParams& p, void* stream) {
  const int64_t columns = 2 * p.num_heads * (p.head_dim / N);
  const TokenGrid g = token_grid(columns, p.num_tokens, kThreads, kTokens);
  if (!g.valid || p.num_slots > INT32_MAX) return kInvalidValue;
  return launch(reshape_and_cache_kernel<In, Out, N>, g.grid, g.block, 0, stream, p,
                FastDiv(static_cast<uint32_t>(p.block_size)));
}

}  // namespace

Error launch_reshape_and_cache(const ReshapeAndCacheParams& p, void* stream) {
  if (p.num_tokens == 0 || p.num_heads == 0 || p.head_dim == 0 || p.num_slots == 0) return kSuccess;
  return dispatch_float(p.input_dtype, [&](auto input) {
    return dispatch_cache_dtype(p.cache_dtype, [&](auto cache) {
      using In = decltype(input);
      using Out = decltype(cache);
      constexpr int kWide = kCacheVector<In, Out>;
      return cache_rows_fit(p, kWide) ? launch_vectors<In, Out, kWide>(p, stream)
                                      : launch_vectors<In, Out, 1>(p, stream);
    });
  });
}

}  // namespace inferx::cuda
