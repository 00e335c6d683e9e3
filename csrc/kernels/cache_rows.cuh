// What the kernels that write into the paged cache share: slots, conversion to the cache's type, the choice
// of vectors.
#pragma once
#include <algorithm>

#include "kernels/dtype_dispatch.h"
#include "kernels/fast_div.h"
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

// Divides many values by one scale for float8: rounded to float8 the result is that of a division in float32,
// but without the branch and the call that each division is.
//
// Method: Markstein, "Computation of elementary functions on the IBM RISC System/6000" (1990): one residual
// step from the product with the reciprocal.  It leaves an error of 2^-46, which could matter only where
// value / scale is that close to a float32 midpoint beside a float8 tie; there are few such scales (eighths,
// off by some units in the last place), and all of them have been tried.  Both operands are scaled so that
// |scale| is about 1, where nothing in between overflows or is subnormal.  What saturates or becomes zero in
// float8 needs no such care, nor do infinity and NaN.
class ScaleDivider {
 public:
  SIMT_DEV ScaleDivider(const CacheScale& scale, int64_t head) {
    const float divisor = scale.data == nullptr ? 1.0f : scale.data[head * scale.stride];
    const uint32_t exponent = __float_as_uint(divisor) >> 23 & 0xff;  // biased by 127
    const uint32_t inverse = exponent < 254 ? 254 - exponent : 1;
    factor_ = __uint_as_float(min(inverse, 253u) << 23);
    divisor_ = divisor * factor_;
    reciprocal_ = 1.0f / divisor_;
  }
  SIMT_DEV float operator()(float value) const {
    const float v = value * factor_;
    const float rough = v * reciprocal_;
    const float q = fmaf(fmaf(-rough, divisor_, v), reciprocal_, rough);
    const float size = fabsf(rough);
    return size > 0x1p-20f && size < 1024.0f ? q : rough;
  }

 private:
  float factor_, divisor_, reciprocal_;
};

// Converts to the cache's type: rounded to nearest even; float8 values are divided by their head's scale and
// saturate at +-448, NaN stays NaN.
template <class In, class Out>
struct ToCache {
  SIMT_DEV ToCache(const CacheScale&, int64_t) {}

  template <int N>
  SIMT_DEV Packed<Out, N> operator()(const Packed<In, N>& in) const {
    if constexpr (std::is_same_v<In, Out>) {
      return in;
    } else {
      Packed<Out, N> out;
#pragma unroll
      for (int i = 0; i < N; ++i) out.at[i] = from_float<Out>(to_float(in.at[i]));
      return out;
    }
  }
};

template <class In>
struct ToCache<In, E4M3> {
  ScaleDivider scaled;
  SIMT_DEV ToCache(const CacheScale& scale, int64_t head) : scaled(scale, head) {}

  template <int N>
  SIMT_DEV Packed<E4M3, N> operator()(const Packed<In, N>& in) const {
    Packed<E4M3, N> out;
    if constexpr (N == 1) {
      out.at[0].bits = __nv_cvt_float_to_fp8(scaled(to_float(in.at[0])), __NV_SATFINITE, __NV_E4M3);
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 2) {  // one instruction converts two
        const float2 pair = make_float2(scaled(to_float(in.at[i])), scaled(to_float(in.at[i + 1])));
        const __nv_fp8x2_storage_t both = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
        out.at[i].bits = static_cast<uint8_t>(both);
        out.at[i + 1].bits = static_cast<uint8_t>(both >> 8);
      }
    }
    return out;
  }
};

// Where a slot's row begins in a cache, in elements; -1 for a slot that is to be skipped.
SIMT_DEV int64_t slot_offset(int64_t slot, int64_t num_slots, const FastDiv& block_size,
                             const CacheRows& cache) {
  if (slot < 0 || slot >= num_slots) return -1;
  const auto at = static_cast<uint32_t>(slot);
  const uint32_t block = block_size.quotient(at);
  return block * cache.stride_block + (at - block * block_size.divisor()) * cache.stride_slot;
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
