// Keys and values into the paged cache, rounded to nearest even where the cache is narrower; float8
// saturates.
#include "cpu/reshape_and_cache.h"

#include "cpu/isa/attention_simd.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

struct E4M3 {
  uint8_t bits;
};

INFERX_INLINE uint32_t float_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

INFERX_INLINE void narrow(float x, float* out) { *out = x; }

INFERX_INLINE void narrow(float x, BF16* out) {
  const uint32_t bits = float_bits(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  out->bits = static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : rounded);  // rounding could turn NaN into inf
}

INFERX_INLINE void narrow(float x, F16* out) {
  const uint32_t sign = (float_bits(x) >> 16) & 0x8000, magnitude = float_bits(x) & 0x7fffffff;
  float absolute;
  memcpy(&absolute, &magnitude, 4);
  // Below 2^-14 halves are multiples of 2^-24, which is what a float near 0.5 resolves: the addition rounds.
  const uint32_t subnormal = float_bits(absolute + 0.5f) - float_bits(0.5f);
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= 0x477ff000 ? 0x7c00 : half;  // from 65520 on the nearest half is infinity
  half = magnitude > 0x7f800000 ? 0x7e00 | ((magnitude >> 13) & 0x3ff) : half;
  out->bits = static_cast<uint16_t>(half | sign);
}

INFERX_INLINE void narrow(float x, E4M3* out) {
  constexpr uint32_t kMax = 0x43e00000;  // 448, which infinity becomes too
  const uint32_t sign = (float_bits(x) >> 24) & 0x80, magnitude = float_bits(x) & 0x7fffffff;
  const uint32_t finite = magnitude < kMax ? magnitude : kMax;
  float absolute;
  memcpy(&absolute, &finite, 4);
  // Below 2^-6 the steps are 2^-9, which is what a float near 2^14 resolves: the addition rounds.
  const uint32_t subnormal = float_bits(absolute + 16384.0f) - float_bits(16384.0f);
  const uint32_t normal = (finite - (120u << 23) + 0x7ffff + ((finite >> 20) & 1)) >> 20;
  const uint32_t bits = (finite < (121u << 23) ? subnormal : normal) | sign;
  out->bits = static_cast<uint8_t>(magnitude > 0x7f800000 ? 0x7f : bits);
}

template <class In, class Out>
INFERX_INLINE void convert_row(const In* __restrict in, Out* __restrict out, int64_t n) {
  int64_t i = 0;
#if defined(__AVX512F__) || (defined(__AVX2__) && defined(__F16C__))
  if constexpr (__is_same(Out, F16)) {
    for (; i + kWidth <= n; i += kWidth) {
      const V v = vload(in + i);
#if defined(__AVX512F__)
      _mm256_storeu_si256((__m256i*)(out + i), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
      _mm_storeu_si128((__m128i*)(out + i), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#endif
    }
  }
#endif
  for (; i < n; ++i) narrow(widen(in[i]), out + i);
}

template <class T>
INFERX_INLINE void convert_row(const T* in, T* out, int64_t n) {
  memcpy(out, in, static_cast<size_t>(n) * sizeof(T));
}

// The division is there for float8 caches only, which alone have scales.
template <class In>
INFERX_INLINE void convert_scaled_row(const In* __restrict in, E4M3* __restrict out, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) narrow(widen(in[i]) / scale, out + i);
}
template <class In, class Out>
INFERX_INLINE void convert_scaled_row(const In* in, Out* out, int64_t n, float) {
  convert_row(in, out, n);
}

template <class In, class Out>
void store(const ReshapeAndCacheParams& p, int which, int64_t begin, int64_t end) {
  const CacheInput& input = p.input[which];
  const CacheOutput& cache = p.cache[which];
  const CacheScale& scales = p.scale[which];
  for (int64_t token = begin; token < end; ++token) {
    const int64_t slot = p.slot_mapping[token];
    if (slot < 0) continue;
    const In* in = static_cast<const In*>(input.data) + token * input.stride_token;
    Out* out = static_cast<Out*>(cache.data) + slot / p.block_size * cache.stride_block +
               slot % p.block_size * cache.stride_slot;
    for (int64_t head = 0; head < p.num_heads; ++head) {
      const float scale = scales.data ? scales.data[head * scales.stride] : 1.0f;
      convert_scaled_row(in + head * input.stride_head, out + head * cache.stride_head, p.head_dim, scale);
    }
  }
}

template <class In>
void store_from(const ReshapeAndCacheParams& p, int which, int64_t begin, int64_t end) {
  switch (p.cache_dtype) {
    case DType::f16:
      return store<In, F16>(p, which, begin, end);
    case DType::bf16:
      return store<In, BF16>(p, which, begin, end);
    case DType::f8e4m3:
      return store<In, E4M3>(p, which, begin, end);
    default:
      return store<In, float>(p, which, begin, end);
  }
}

void store_tokens(const ReshapeAndCacheParams& p, int which, int64_t begin, int64_t end) {
  switch (p.input_dtype) {
    case DType::f16:
      return store_from<F16>(p, which, begin, end);
    case DType::bf16:
      return store_from<BF16>(p, which, begin, end);
    default:
      return store_from<float>(p, which, begin, end);
  }
}

}  // namespace

const ReshapeAndCacheKernels reshape_and_cache_kernels{store_tokens};

}  // namespace inferx::cpu::INFERX_ISA
