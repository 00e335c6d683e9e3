// What the kernels that write into the paged cache share: slots, conversion to the cache's type, the choice
// of vectors.
#pragma once
#include <algorithm>

#include "kernels/dtype_dispatch.h"
#include "kernels/packed.cuh"
#include "kernels/reshape_and_cache.h"

namespace inferx::cuda {

struct E4M3 {
  uint8_t bits;
};

// body(T{}) with T as the cache's dtype.
template <class Body>
Error dispatch_cache_dtype(DType dtype, const Body& body) {
  return dtype == DType::f8e4m3 ? body(E4M3{}) : dispatch_float(dtype, body);
}

SIMT_DEV float scale_of_head(const CacheScale& scale, int64_t head) {
  return scale.data == nullptr ? 1.0f : scale.data[head * scale.stride];
}

// Rounded to nearest even; float8 values are divided by the scale and saturate at +-448, NaN stays NaN.
template <class Out, class In, int N>
SIMT_DEV Packed<Out, N> to_cache(const Packed<In, N>& in, [[maybe_unused]] float scale) {
  Packed<Out, N> out;
  if constexpr (std::is_same_v<In, Out>) {
    out = in;
  } else if constexpr (!std::is_same_v<Out, E4M3>) {
#pragma unroll
    for (int i = 0; i < N; ++i) out.at[i] = from_float<Out>(to_float(in.at[i]));
  } else if constexpr (N == 1) {
    out.at[0].bits = __nv_cvt_float_to_fp8(to_float(in.at[0]) / scale, __NV_SATFINITE, __NV_E4M3);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 2) {  // one instruction converts two
      const float2 pair = make_float2(to_float(in.at[i]) / scale, to_float(in.at[i + 1]) / scale);
      const __nv_fp8x2_storage_t both = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
      out.at[i].bits = static_cast<uint8_t>(both);
      out.at[i + 1].bits = static_cast<uint8_t>(both >> 8);
    }
  }
  return out;
}

// Where a slot's row begins in a cache, in elements; -1 for a slot that is to be skipped.
SIMT_DEV int64_t slot_offset(int64_t slot, const ReshapeAndCacheParams& p, const CacheRows& cache) {
  if (slot < 0 || slot >= p.num_slots) return -1;
  const int64_t block = slot / p.block_size;
  return block * cache.stride_block + (slot - block * p.block_size) * cache.stride_slot;
}

// Elements per access where everything is aligned: 16 bytes of the wider type.
template <class In, class Out>
constexpr int kCacheVector = 16 / (sizeof(In) > sizeof(Out) ? sizeof(In) : sizeof(Out));

// Whether n elements at a time of all rows are aligned to their size.
inline bool rows_fit(const TokenRows& rows, int64_t n, size_t item) {
  const uint64_t strides = static_cast<uint64_t>(rows.stride_token) | static_cast<uint64_t>(rows.stride_head);
  return (reinterpret_cast<uint64_t>(rows.data) | strides * item) % (n * item) == 0;
}
inline bool rows_fit(const CacheRows& rows, int64_t n, size_t item) {
  const uint64_t strides = static_cast<uint64_t>(rows.stride_block) |
                           static_cast<uint64_t>(rows.stride_slot) | static_cast<uint64_t>(rows.stride_head);
  return (reinterpret_cast<uint64_t>(rows.data) | strides * item) % (n * item) == 0;
}
inline bool cache_rows_fit(const ReshapeAndCacheParams& p, int64_t n) {
  const size_t in = dtype_size(p.input_dtype), out = dtype_size(p.cache_dtype);
  return p.head_dim % n == 0 && rows_fit(p.input[0], n, in) && rows_fit(p.input[1], n, in) &&
         rows_fit(p.cache[0], n, out) && rows_fit(p.cache[1], n, out);
}

// Threads x take the columns (vectors of a token's row), threads y and CTAs x tokens, kTokens each.
struct TokenGrid {
  dim3 grid, block;
  bool valid;
};
inline TokenGrid token_grid(int64_t columns, int64_t num_tokens, int max_threads, int tokens_per_thread) {
  const int64_t chunks = (columns + max_threads - 1) / max_threads;
  const int64_t x = ((columns + chunks - 1) / chunks + 31) / 32 * 32;
  const int64_t groups = (num_tokens + tokens_per_thread - 1) / tokens_per_thread;
  const int64_t y = std::min<int64_t>(max_threads / x, groups);
  const int64_t ctas = (groups + y - 1) / y;
  return {dim3(static_cast<unsigned>(ctas), static_cast<unsigned>(chunks)),
          dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)), ctas <= INT32_MAX && chunks <= 65535};
}

}  // namespace inferx::cuda
