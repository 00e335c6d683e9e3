// Groups of 32 floats as 8-bit codes: see QuantizedRows.
#pragma once
#include "cpu/int8_kernels.h"
#include "cpu/isa/linear_simd.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

constexpr int kGroupVectors = kGroup / kLanes;

// To nearest, ties to even; what has no integer becomes some integer.
INFERX_INLINE S round_to_int(F v) {
#if defined(__AVX512F__)
  return (S)_mm512_cvtps_epi32((__m512)v);
#elif defined(__AVX2__)
  return (S)_mm256_cvtps_epi32((__m256)v);
#elif defined(__x86_64__)
  return (S)_mm_cvtps_epi32((__m128)v);
#else
  return (S)vcvtnq_s32_f32((float32x4_t)v);
#endif
}

// A group's codes, in the order of QuantizedRows.
INFERX_INLINE void store_codes(const S (&code)[kGroupVectors], uint8_t* bytes) {
#if defined(__AVX2__)
  __m256i natural;
#if defined(__AVX512F__)
  natural = _mm256_set_m128i(_mm512_cvtepi32_epi8((__m512i)code[1]), _mm512_cvtepi32_epi8((__m512i)code[0]));
#else
  const __m256i low = _mm256_packs_epi32((__m256i)code[0], (__m256i)code[1]);
  const __m256i high = _mm256_packs_epi32((__m256i)code[2], (__m256i)code[3]);
  natural =
      _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#endif
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  const __m256i ordered = _mm256_shuffle_epi8(natural, _mm256_broadcastsi128_si256(order));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes), ordered);
#else
  int32_t natural[kGroup];
  std::memcpy(natural, code, sizeof natural);
  for (int k = 0; k < kGroup; ++k)
    bytes[k / 8 * 8 + k % 2 * 4 + k % 8 / 2] = static_cast<uint8_t>(natural[k]);
#endif
}

// Combines the lanes, halves by halves.
template <class Combine>
INFERX_INLINE int32_t across_lanes(S v, const Combine& combine) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const __m256i eight = combine(_mm512_castsi512_si256((__m512i)v), _mm512_extracti64x4_epi64((__m512i)v, 1));
#else
  const __m256i eight = (__m256i)v;
#endif
  __m128i four =
      _mm256_castsi256_si128(combine(eight, _mm256_castsi128_si256(_mm256_extracti128_si256(eight, 1))));
  four = _mm256_castsi256_si128(
      combine(_mm256_castsi128_si256(four), _mm256_castsi128_si256(_mm_shuffle_epi32(four, 0x0e))));
  four = _mm256_castsi256_si128(
      combine(_mm256_castsi128_si256(four), _mm256_castsi128_si256(_mm_shuffle_epi32(four, 0x01))));
  return _mm_cvtsi128_si32(four);
#else
  int32_t lane[kLanes];
  std::memcpy(lane, &v, sizeof v);
  for (int i = 1; i < kLanes; ++i) lane[0] = combine(lane[0], lane[i]);
  return lane[0];
#endif
}

struct Larger {
#if defined(__AVX2__)
  INFERX_INLINE __m256i operator()(__m256i a, __m256i b) const { return _mm256_max_epi32(a, b); }
#else
  INFERX_INLINE int32_t operator()(int32_t a, int32_t b) const { return a > b ? a : b; }
#endif
};
struct Added {
#if defined(__AVX2__)
  INFERX_INLINE __m256i operator()(__m256i a, __m256i b) const { return _mm256_add_epi32(a, b); }
#else
  INFERX_INLINE int32_t operator()(int32_t a, int32_t b) const { return a + b; }
#endif
};

// By its bits: ordered as the numbers are, with NaN above infinity, so that neither is lost.
INFERX_INLINE float largest_magnitude(const F (&x)[kGroupVectors]) {
  S most = {};
  for (int v = 0; v < kGroupVectors; ++v) {
    const S bits = (S)((I)x[v] & 0x7fffffff);
    most = bits > most ? bits : most;
  }
  const int32_t largest = across_lanes(most, Larger());
  float value;
  std::memcpy(&value, &largest, sizeof value);
  return value;
}

INFERX_INLINE int32_t add_up(const S* code, int vectors) {
  S sum = code[0];
  for (int v = 1; v < vectors; ++v) sum += code[v];
  return across_lanes(sum, Added());
}

// Row `row` of `rows`, one group.
INFERX_INLINE void quantize_group(const float* x, int row, int rows, const QuantizedPanel& out) {
  // Below this 127 / largest would overflow; such a group counts as zeros.
  constexpr float kSmallest = 1e-30f;
  F value[kGroupVectors];
  for (int v = 0; v < kGroupVectors; ++v) value[v] = load<F>(x + v * kLanes);
  const float largest = largest_magnitude(value);
  const bool zeros = largest < kSmallest;
  const float scale = zeros ? 0.0f : largest / 127.0f;
  const F inverse = splat(zeros ? 0.0f : 127.0f / largest);
  S code[kGroupVectors];
  for (int v = 0; v < kGroupVectors; ++v) code[v] = round_to_int(value[v] * inverse);
  alignas(32) uint8_t bytes[kGroup];
  store_codes(code, bytes);
  for (int i = 0; i < kGroup / 4; ++i) std::memcpy(out.codes + (i * rows + row) * 4, bytes + 4 * i, 4);
  const int32_t first = add_up(code, kGroupVectors / 2),
                second = add_up(code + kGroupVectors / 2, kGroupVectors / 2);
  out.scales[row] = scale;
  out.sums[2 * row] = static_cast<int16_t>(first);
  out.sums[2 * row + 1] = static_cast<int16_t>(second);
  out.offsets[row] = scale * (static_cast<float>(first) + static_cast<float>(second));
}

void quantize(const float* const* x, int rows, int64_t groups, const QuantizedPanel& out) {
  for (int r = 0; r < rows; ++r) {
    QuantizedPanel at = out;
    for (int64_t g = 0; g < groups; ++g) {
      quantize_group(x[r] + g * kGroup, r, rows, at);
      at.codes += kGroup * rows;
      at.scales += rows;
      at.sums += 2 * rows;
      at.offsets += rows;
    }
  }
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
