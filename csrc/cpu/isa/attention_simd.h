// Vectors for the attention kernels: one native width per instruction set, loads that widen f16 and bf16, a
// register transpose, exp and tanh.
//
// Internal linkage throughout: a comdat copy made with AVX flags could be the one the linker keeps for
// everybody.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
// GCC 12 calls its own _mm512_undefined_ps() uninitialized wherever it is inlined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "cpu/attention.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float V __attribute__((vector_size(kWidth * 4)));
typedef int32_t VI __attribute__((vector_size(kWidth * 4)));

#define INFERX_INLINE inline __attribute__((always_inline))

INFERX_INLINE V vset(float x) {
#if defined(__AVX512F__)
  return _mm512_set1_ps(x);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_set1_ps(x);
#else
  return V{x, x, x, x};
#endif
}
INFERX_INLINE VI viset(int32_t x) { return VI{} + x; }

INFERX_INLINE V vload(const float* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}
INFERX_INLINE void vstore(float* p, V v) { memcpy(p, &v, sizeof v); }
INFERX_INLINE VI vbits(V v) { return (VI)v; }
INFERX_INLINE V vfloat(VI v) { return (V)v; }

INFERX_INLINE VI vlanes() {
#if defined(__AVX512F__)
  return VI{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__) && defined(__FMA__)
  return VI{0, 1, 2, 3, 4, 5, 6, 7};
#else
  return VI{0, 1, 2, 3};
#endif
}

// a * b + c
INFERX_INLINE V vfma(V a, V b, V c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

// A NaN in `b` is returned, one in `a` may be dropped.
INFERX_INLINE V vmax(V a, V b) {
#if defined(__AVX512F__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

// Reductions over the lanes, always in this one order.
INFERX_INLINE float hsum(V v) {
#if defined(__AVX512F__)
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
#elif defined(__AVX2__) && defined(__FMA__)
  __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

INFERX_INLINE float hmax(V v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(v);
#elif defined(__AVX2__) && defined(__FMA__)
  __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  quarter = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)));
#else
  float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
#endif
}

// ---- cache elements -------------------------------------------------------------------------------------
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

INFERX_INLINE float widen(float x) { return x; }
INFERX_INLINE float widen(BF16 x) {
  uint32_t bits = (uint32_t)x.bits << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
INFERX_INLINE float widen(F16 x) {
  // Exponent and mantissa moved in place, then scaled by 2^112: exact for normal and subnormal alike.
  uint32_t magnitude = (uint32_t)(x.bits & 0x7fff) << 13, sign = (uint32_t)(x.bits & 0x8000) << 16;
  float f;
  memcpy(&f, &magnitude, 4);
  f *= 0x1p112f;
  memcpy(&magnitude, &f, 4);
  if ((x.bits & 0x7c00) == 0x7c00) magnitude |= 0x7f800000u;
  magnitude |= sign;
  memcpy(&f, &magnitude, 4);
  return f;
}

INFERX_INLINE V vload(const BF16* p) {
#if defined(__AVX512F__)
  __m256i raw = _mm256_loadu_si256((const __m256i*)p);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
#elif defined(__AVX2__) && defined(__FMA__)
  __m128i raw = _mm_loadu_si128((const __m128i*)p);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
#else
  return V{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])};
#endif
}

#if !defined(__AVX2__)
INFERX_INLINE V widen_halves(VI halves) {
  const V scaled = vfloat((halves & 0x7fff) << 13) * vset(0x1p112f);
  const VI special = (VI)((halves & 0x7c00) == 0x7c00) & 0x7f800000;
  return vfloat(vbits(scaled) | special | ((halves & 0x8000) << 16));
}
#endif

INFERX_INLINE V vload(const F16* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__) && defined(__FMA__)
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#else
  return widen_halves(VI{p[0].bits, p[1].bits, p[2].bits, p[3].bits});
#endif
}

// Words that hold two neighbouring elements each -> the even and the odd elements.
INFERX_INLINE void vsplit(V words, V* even, V* odd, BF16) {
  *even = vfloat(vbits(words) << 16);
  *odd = vfloat(vbits(words) & (int32_t)0xffff0000);
}
#if !defined(__AVX2__)
INFERX_INLINE void vsplit(V words, V* even, V* odd, F16) {
  *even = widen_halves(vbits(words) & 0xffff);
  *odd = widen_halves((vbits(words) >> 16) & 0xffff);
}
#endif

// Eight elements, the upper lanes 0: the end of a row whose length is 8 modulo 16.  Only 16-lane builds
// need it.
#if defined(__AVX512F__)
INFERX_INLINE V vload_low8(const float* p) { return _mm512_zextps256_ps512(_mm256_loadu_ps(p)); }
INFERX_INLINE V vload_low8(const F16* p) {
  return _mm512_zextps256_ps512(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)));
}
INFERX_INLINE V vload_low8(const BF16* p) {
  __m256i raw = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm512_zextps256_ps512(_mm256_castsi256_ps(_mm256_slli_epi32(raw, 16)));
}
INFERX_INLINE void vstore_low8(float* p, V v) { _mm256_storeu_ps(p, _mm512_castps512_ps256(v)); }
#else
template <class T>
INFERX_INLINE V vload_low8(const T* p) {
  return vload(p);
}
INFERX_INLINE void vstore_low8(float* p, V v) { vstore(p, v); }
#endif

// ---- transpose of kWidth vectors ------------------------------------------------------------------------
#if defined(__AVX512F__)
INFERX_INLINE void vtranspose(V* v) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
    __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
    v[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    v[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    v[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    v[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    v[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    v[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
  }
}
#elif defined(__AVX2__) && defined(__FMA__)
INFERX_INLINE void vtranspose(V* v) {
  __m256 t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    v[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    v[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    v[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    v[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) v[i] = t[i];
}
#else
INFERX_INLINE void vtranspose(V* v) {
  const V low01 = __builtin_shuffle(v[0], v[1], VI{0, 4, 1, 5}),
          high01 = __builtin_shuffle(v[0], v[1], VI{2, 6, 3, 7});
  const V low23 = __builtin_shuffle(v[2], v[3], VI{0, 4, 1, 5}),
          high23 = __builtin_shuffle(v[2], v[3], VI{2, 6, 3, 7});
  v[0] = __builtin_shuffle(low01, low23, VI{0, 1, 4, 5});
  v[1] = __builtin_shuffle(low01, low23, VI{2, 3, 6, 7});
  v[2] = __builtin_shuffle(high01, high23, VI{0, 1, 4, 5});
  v[3] = __builtin_shuffle(high01, high23, VI{2, 3, 6, 7});
}
#endif

// ---- columns of 2 * kWidth halves from kWidth rows of them -----------------------------------------------
// Transposes in place; afterwards vcolumn(v, j, T()) is element j of all rows.
template <class T>
INFERX_INLINE void vtranspose_pairs(V* v, T) {
  vtranspose(v);
}
template <class T>
INFERX_INLINE V vcolumn(const V* v, int j, T) {
  V even, odd;
  vsplit(v[j / 2], &even, &odd, T());
  return j % 2 == 0 ? even : odd;
}

#if defined(__AVX512F__)
// 8 x 8 halves inside of each quarter of a register, for rows 0-7 and 8-15; then each quarter of the one is
// put beside its counterpart in the other, since the conversion reads 16 halves side by side.
INFERX_INLINE void vtranspose_pairs(V* v, F16) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 8) {
    __m512i a[8], b[8];
    for (int k = 0; k < 4; ++k) {  // rows k and k + 4, so that rows come out in order
      const __m512i low = _mm512_castps_si512(v[i + k]), high = _mm512_castps_si512(v[i + k + 4]);
      a[k] = _mm512_unpacklo_epi16(low, high);
      a[k + 4] = _mm512_unpackhi_epi16(low, high);
    }
    for (int k = 0; k < 2; ++k) {
      for (int half = 0; half < 8; half += 4) {
        b[half + k] = _mm512_unpacklo_epi16(a[half + k], a[half + k + 2]);
        b[half + k + 2] = _mm512_unpackhi_epi16(a[half + k], a[half + k + 2]);
      }
    }
    for (int k = 0; k < 4; ++k) {
      t[i + 2 * k] = _mm512_unpacklo_epi16(b[2 * k], b[2 * k + 1]);
      t[i + 2 * k + 1] = _mm512_unpackhi_epi16(b[2 * k], b[2 * k + 1]);
    }
  }
  const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  for (int i = 0; i < 8; ++i) {
    v[i] = _mm512_castsi512_ps(_mm512_permutex2var_epi64(t[i], lower, t[i + 8]));
    v[i + 8] = _mm512_castsi512_ps(_mm512_permutex2var_epi64(t[i], upper, t[i + 8]));
  }
}
INFERX_INLINE V vcolumn(const V* v, int j, F16) {
  const __m512i halves = _mm512_castps_si512(v[j % 8 + j / 16 * 8]);
  return _mm512_cvtph_ps(j / 8 % 2 == 0 ? _mm512_castsi512_si256(halves)
                                        : _mm512_extracti64x4_epi64(halves, 1));
}
#elif defined(__AVX2__) && defined(__FMA__)
INFERX_INLINE void vtranspose_pairs(V* v, F16) {
  __m256i a[8], b[8];
  for (int k = 0; k < 4; ++k) {  // rows k and k + 4, so that rows come out in order
    const __m256i low = _mm256_castps_si256(v[k]), high = _mm256_castps_si256(v[k + 4]);
    a[k] = _mm256_unpacklo_epi16(low, high);
    a[k + 4] = _mm256_unpackhi_epi16(low, high);
  }
  for (int k = 0; k < 2; ++k) {
    for (int half = 0; half < 8; half += 4) {
      b[half + k] = _mm256_unpacklo_epi16(a[half + k], a[half + k + 2]);
      b[half + k + 2] = _mm256_unpackhi_epi16(a[half + k], a[half + k + 2]);
    }
  }
  for (int k = 0; k < 4; ++k) {
    v[2 * k] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(b[2 * k], b[2 * k + 1]));
    v[2 * k + 1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(b[2 * k], b[2 * k + 1]));
  }
}
INFERX_INLINE V vcolumn(const V* v, int j, F16) {
  const __m256i halves = _mm256_castps_si256(v[j % 8]);
  return _mm256_cvtph_ps(j < 8 ? _mm256_castsi256_si128(halves) : _mm256_extracti128_si256(halves, 1));
}
#endif

// ---- exp, tanh ------------------------------------------------------------------------------------------
// exp for x <= 88: x = n ln2 + r with |r| <= ln2/2, a degree-6 polynomial in r, scaled by 2^n.  At most 1
// ulp off, 0 below exp(-87); exp(0) = 1, exp(-inf) = 0, NaN stays NaN.
INFERX_INLINE V vexp(V x) {
  const V shift = vset(0x1.8p23f);  // adding it rounds to an integer, which the low mantissa bits keep
  const V biased = vfma(x, vset(1.44269504088896341f), shift);
  const V n = biased - shift;
  V r = vfma(n, vset(-0.693359375f), x);  // exact: the constant has 10 bits
  r = vfma(n, vset(2.12194440054690583e-4f), r);
  V p = vset(1.38146e-3f);
  p = vfma(p, r, vset(8.368716575e-3f));
  p = vfma(p, r, vset(4.166838899e-2f));
  p = vfma(p, r, vset(1.666652113e-1f));
  p = vfma(p, r, vset(4.999999404e-1f));
  p = vfma(p, r, vset(1.0f));
  p = vfma(p, r, vset(1.0f));
#if defined(__AVX512F__)
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, vset(-87.0f), _CMP_NLT_UQ), p, n);
#else
  const V scaled = vfloat(vbits(p) + (vbits(biased) << 23));
  return vfloat(vbits(scaled) & ~(VI)(x < vset(-87.0f)));
#endif
}

// tanh to about 2 ulp: an odd polynomial below 0.625, (1 - exp(-2|x|)) / (1 + exp(-2|x|)) above.
INFERX_INLINE V vtanh(V x) {
  VI sign = vbits(x) & (int32_t)0x80000000;
  V a = vfloat(vbits(x) ^ sign);
  V z = a * a;
  V p = vset(-5.717043765e-3f);
  p = vfma(p, z, vset(2.065058611e-2f));
  p = vfma(p, z, vset(-5.374349654e-2f));
  p = vfma(p, z, vset(1.333149076e-1f));
  p = vfma(p, z, vset(-3.333328366e-1f));
  V small = vfma(p * z, a, a);
  V e = vexp(vset(-2.0f) * a);  // exp of a negative number cannot overflow
  V large = (vset(1.0f) - e) / (vset(1.0f) + e);
  V magnitude = a < vset(0.625f) ? small : large;
  return vfloat(vbits(magnitude) | sign);
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
