// The vectors of the linear kernels: F and I hold kLanes floats or 32-bit words of neighbouring columns.
//
// GCC's vector types carry the plain arithmetic on every target; what has no operator (fused multiply-add,
// half precision, table look-up) is written per instruction set.  fma is one rounding where the target has it
// and two in the x86 baseline: results may differ between instruction sets, never within one.
#pragma once
#include "cpu/isa/lanes.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

typedef uint32_t I __attribute__((vector_size(4 * kLanes)));
typedef int32_t S __attribute__((vector_size(4 * kLanes)));  // signed: arithmetic shifts, conversion

#define INFERX_INLINE inline __attribute__((always_inline))

template <class Vector>
INFERX_INLINE Vector load(const void* p) {
  Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
INFERX_INLINE void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
INFERX_INLINE F splat(float value) {
#if defined(__AVX512F__)
  return (F)_mm512_set1_ps(value);
#elif defined(__AVX2__)
  return (F)_mm256_set1_ps(value);
#elif defined(__x86_64__)
  return (F)_mm_set1_ps(value);
#else
  return (F)vdupq_n_f32(value);
#endif
}
INFERX_INLINE F to_float(I v) { return __builtin_convertvector((S)v, F); }

INFERX_INLINE F fma(F a, F b, F c) {
#if defined(__AVX512F__)
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;  // -ffp-contract=off keeps it at that
#endif
}

// kLanes unsigned integers, widened.  Spelled out: GCC 12 takes __builtin_convertvector from 8 bits apart.
INFERX_INLINE I load_uint16(const void* p) {
#if defined(__AVX512F__)
  return (I)_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  return (I)_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
#elif defined(__x86_64__)
  return (I)_mm_unpacklo_epi16(_mm_loadl_epi64(static_cast<const __m128i*>(p)), _mm_setzero_si128());
#else
  return (I)vmovl_u16(vld1_u16(static_cast<const uint16_t*>(p)));
#endif
}
INFERX_INLINE I load_uint8(const void* p) {
#if defined(__AVX512F__)
  return (I)_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (I)_mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
#else
  uint32_t four;
  std::memcpy(&four, p, 4);
#if defined(__x86_64__)
  const __m128i zero = _mm_setzero_si128();
  return (I)_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(static_cast<int>(four)), zero), zero);
#else
  return (I)vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
#endif
#endif
}

// kLanes half-precision numbers, exactly.
INFERX_INLINE F load_half(const void* p) {
#if defined(__AVX512F__)
  return (F)_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
#elif defined(__F16C__)
  return (F)_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
#elif defined(__aarch64__)
  return (F)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(static_cast<const uint16_t*>(p))));
#else
  const I half = load_uint16(p);
  const I magnitude = (half & 0x7fff) << 13;
  const I special = (I)((half & 0x7c00) == 0x7c00) & 0x7f800000;  // infinity, NaN: the exponent stays full
  return (F)((I)((F)magnitude * 0x1p112f) | special | (half & 0x8000) << 16);
#endif
}

// `bits` low bits of every lane as a signed number.
template <int bits>
INFERX_INLINE F signed_to_float(I v) {
  return to_float((I)((S)(v << (32 - bits)) >> (32 - bits)));
}

INFERX_INLINE F load_bfloat(const void* p) { return (F)(load_uint16(p) << 16); }

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
