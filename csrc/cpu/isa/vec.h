// Vectors of floats for the file's instruction set: kLanes floats in F, kLanes integers in I.
//
// Arithmetic and comparisons are the compiler's vector extensions (`a < b` gives an I of 0 or -1; `mask ? a :
// b` selects).  Only what those do badly is written with intrinsics.  Everything has internal linkage (see
// csrc/README.md).
#pragma once
#include "cpu/isa/lanes.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

typedef int32_t I __attribute__((vector_size(4 * kLanes)));
typedef uint32_t U __attribute__((vector_size(4 * kLanes)));
typedef uint16_t H __attribute__((vector_size(2 * kLanes)));

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

inline F splat(float value) { return value - F{}; }
inline I splat_int(int32_t value) { return value - I{}; }
inline F select(I mask, F yes, F no) { return mask ? yes : no; }
inline F abs(F x) { return (F)((I)x & splat_int(0x7fffffff)); }

// a * b + c, fused where the instruction set has it (all but base on x86).
inline F fma(F a, F b, F c) {
#if defined(__AVX512F__)
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
  return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// Always the same tree: halves are added until one lane is left.
inline float sum_lanes(F v) {
  float lane[kLanes];
  std::memcpy(lane, &v, sizeof v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

// ---- float16, bfloat16 <-> float32 (to nearest, ties to even; NaN stays NaN) ----

inline U widen(H half) {
#if defined(__AVX512F__)
  return (U)_mm512_cvtepu16_epi32((__m256i)half);
#elif defined(__AVX2__)
  return (U)_mm256_cvtepu16_epi32((__m128i)half);
#else
  return __builtin_convertvector(half, U);
#endif
}

// Every lane must fit 16 bits.
inline H narrow(U word) {
#if defined(__AVX512F__)
  return (H)_mm512_cvtepi32_epi16((__m512i)word);
#elif defined(__AVX2__)
  const __m256i packed = _mm256_packus_epi32((__m256i)word, (__m256i)word);  // within each 128-bit half
  return (H)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
  return __builtin_convertvector(word, H);
#endif
}

inline F from_bf16(H half) { return (F)(widen(half) << 16); }

inline H to_bf16(F x) {
  const U bits = (U)x;
  const U rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const U quiet_nan = (bits >> 16) | 0x40;
  return narrow((U)(x == x ? (I)rounded : (I)quiet_nan));
}

inline F from_f16(H half) {
#if defined(__AVX512F__)
  return (F)_mm512_cvtph_ps((__m256i)half);
#elif defined(__F16C__)
  return (F)_mm256_cvtph_ps((__m128i)half);
#else
  const U word = widen(half);
  const U sign = (word & 0x8000) << 16;
  const U magnitude = word & 0x7fff;
  const U normal = (magnitude << 13) + (112u << 23);
  const U special = (magnitude << 13) + (224u << 23);                                   // inf, NaN
  const U subnormal = (U)(__builtin_convertvector((I)magnitude, F) * splat(0x1p-24f));  // and zero
  const U small_or_normal = (U)((I)magnitude < splat_int(0x0400) ? (I)subnormal : (I)normal);
  return (F)((U)((I)magnitude >= splat_int(0x7c00) ? (I)special : (I)small_or_normal) | sign);
#endif
}

inline H to_f16(F x) {
#if defined(__AVX512F__)
  return (H)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  return (H)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const U bits = (U)x;
  const U sign = (bits >> 16) & 0x8000;
  const U magnitude = bits & 0x7fffffff;
  const U rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  const U normal = (rounded - (112u << 23)) >> 13;
  // Adding 0.5 leaves multiples of 2^-24, the step of float16's subnormals, in the low bits.
  const U subnormal = (U)((F)magnitude + splat(0.5f)) - (U)splat(0.5f);
  const U nan = ((magnitude >> 13) & 0x3ff) | 0x7e00;
  I half = (I)magnitude < splat_int(0x38800000) ? (I)subnormal : (I)normal;
  half = (I)rounded >= splat_int(0x47800000) ? splat_int(0x7c00) : half;
  half = (I)magnitude > splat_int(0x7f800000) ? (I)nan : half;
  return narrow((U)half | sign);
#endif
}

// ---- Loads and stores, unaligned ----

inline H load_half(const void* p) {
  H half;
  std::memcpy(&half, p, sizeof half);
  return half;
}

inline F load(const float* p) {
  F v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline F load(const f16* p) { return from_f16(load_half(p)); }
inline F load(const bf16* p) { return from_bf16(load_half(p)); }

inline void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
inline void store(f16* p, F v) {
  const H half = to_f16(v);
  std::memcpy(p, &half, sizeof half);
}
inline void store(bf16* p, F v) {
  const H half = to_bf16(v);
  std::memcpy(p, &half, sizeof half);
}

// With a count: only the first `count` elements are touched when it is below kLanes; the others read as 0.
template <class T>
inline F load(const T* p, int64_t count) {
  if (count >= kLanes) return load(p);
  T padded[kLanes] = {};
  std::memcpy(padded, p, count * sizeof(T));
  return load(padded);
}

template <class T>
inline void store(T* p, F v, int64_t count) {
  if (count >= kLanes) return store(p, v);
  T padded[kLanes];
  store(padded, v);
  std::memcpy(p, padded, count * sizeof(T));
}

// body(i, count) for i = 0, kLanes, 2 kLanes ... below n; count is kLanes, in the last round what is left.
// The tail takes the same instructions as the rest, so an element's value does not depend on where it stands.
template <class Body>
inline void for_each_vector(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) body(i, int64_t{kLanes});
  if (i < n) body(i, n - i);
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
