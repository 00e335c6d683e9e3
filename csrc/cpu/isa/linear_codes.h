// From packed codes to vectors of floats, eight k at a time ("chunk").
//
// Chunk<format>(words, chunk) loads what the columns at `words` (a column of the group's first word) have for
// k = 8 * chunk .. 8 * chunk + 7 of the group; get<j>() is code k = 8 * chunk + j minus the zero point,
// exactly. With AVX-512 the look-ups vpermps and vpermt2ps turn four or five bits into a float in one
// instruction and ignore the bits above, so that no mask is needed.
#pragma once
#include "cpu/isa/linear_simd.h"
#include "cpu/packed_weight.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

INFERX_INLINE I load_words(const uint32_t* words, int index) { return load<I>(words + index * kTileColumns); }

#if defined(__AVX512F__)
// Table look-up on the low four bits: lane -> start + step * (index & mask).
template <int start, int step, int mask>
INFERX_INLINE F lookup16(I index) {
  F table;
  for (int i = 0; i < 16; ++i) table[i] = static_cast<float>(start + step * (i & mask));
  return (F)_mm512_permutexvar_ps((__m512i)index, (__m512)table);
}

template <int start>
INFERX_INLINE F lookup32(I index) {
  F low, high;
  for (int i = 0; i < 16; ++i) {
    low[i] = static_cast<float>(start + i);
    high[i] = static_cast<float>(start + 16 + i);
  }
  return (F)_mm512_permutex2var_ps((__m512)low, (__m512i)index, (__m512)high);
}
#endif

template <Codes kind, int zero>
struct Chunk;

template <int zero>
struct Chunk<Codes::c4, zero> {
  I low;
  INFERX_INLINE Chunk(const uint32_t* words, int chunk) : low(load_words(words, chunk)) {}
  template <int j>
  INFERX_INLINE F get() const {
#if defined(__AVX512F__)
    return lookup16<-zero, 1, 15>(low >> (4 * j));
#else
    return to_float((low >> (4 * j) & 15) - zero);
#endif
  }
};

template <int zero>
struct Chunk<Codes::c5, zero> {
  I low, high;
  INFERX_INLINE Chunk(const uint32_t* words, int chunk)
      : low(load_words(words, chunk)), high(load_words(words, 4) >> (8 * chunk)) {}
  template <int j>
  INFERX_INLINE F get() const {
    const I fifth = j < 4 ? high << (4 - j) : high >> (j - 4);  // at bit 4
#if defined(__AVX512F__)
    const __m512i bit = _mm512_set1_epi32(16);
    return lookup32<-zero>(
        (I)_mm512_ternarylogic_epi32(bit, (__m512i)fifth, (__m512i)(low >> (4 * j)), 0xca));
#else
    return to_float(((low >> (4 * j) & 15) | (fifth & 16)) - zero);
#endif
  }
};

template <int zero>
struct Chunk<Codes::c6, zero> {
  I low, high;
  INFERX_INLINE Chunk(const uint32_t* words, int chunk)
      : low(load_words(words, chunk)), high(load_words(words, 4 + chunk / 2) >> (16 * (chunk % 2))) {}
  template <int j>
  INFERX_INLINE F get() const {
#if defined(__AVX512F__)
    return lookup16<0, 1, 15>(low >> (4 * j)) + lookup16<-zero, 16, 3>(high >> (2 * j));
#else
    const I upper = j < 2 ? high << (4 - 2 * j) : high >> (2 * j - 4);  // at bits 4 and 5
    return to_float(((low >> (4 * j) & 15) | (upper & 48)) - zero);
#endif
  }
};

template <int zero>
struct Chunk<Codes::c8, zero> {
  I first, second;
  INFERX_INLINE Chunk(const uint32_t* words, int chunk)
      : first(load_words(words, 2 * chunk)), second(load_words(words, 2 * chunk + 1)) {}
  template <int j>
  INFERX_INLINE F get() const {
    const I word = j < 4 ? first : second;
    return to_float((I)((S)(word << (24 - 8 * (j % 4))) >> 24));
  }
};

// Scale and minimum of one unit (partial sum) of a block, for the kLanes columns from `column`.
template <WeightFormat format>
struct UnitScales {
  F scale, min;
  INFERX_INLINE UnitScales(const uint8_t* block, int unit, int column) {
    constexpr Scales kind = traits_of(format).scales;
    constexpr HeaderLayout header = header_layout(format);
    const int entry = unit * kTileColumns + column;
    scale = load_half(block + 2 * column);
    if constexpr (kind == Scales::k) scale *= load_int8(block + header.scale + entry);
    if constexpr (kind == Scales::km) scale *= load_uint8(block + header.scale + entry);
    if constexpr (kind == Scales::dm) min = load_half(block + header.m + 2 * column);
    if constexpr (kind == Scales::km) {
      min = -load_half(block + header.m + 2 * column) * load_uint8(block + header.min + entry);
    }
  }
};

// One k of a float format: kLanes elements at `p`.
template <WeightFormat format>
INFERX_INLINE F load_element(const uint8_t* p) {
  if constexpr (format == WeightFormat::f32) return load<F>(p);
  if constexpr (format == WeightFormat::f16) return load_half(p);
  if constexpr (format == WeightFormat::bf16) return load_bfloat(p);
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
