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
      : low(load_words(words, chunk)), high(load_words(words, 4) >> (2 * chunk)) {}
  template <int j>
  INFERX_INLINE F get() const {
    constexpr int bit_of = 8 * (j / 2) + j % 2;
    const I fifth = bit_of < 4 ? high << (4 - bit_of) : high >> (bit_of - 4);  // at bit 4
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
      : low(load_words(words, chunk)), high(load_words(words, 4 + chunk / 2) >> (4 * (chunk % 2))) {}
  template <int j>
  INFERX_INLINE F get() const {
    constexpr int bit_of = 8 * (j / 2) + 2 * (j % 2);
#if defined(__AVX512F__)
    return lookup16<0, 1, 15>(low >> (4 * j)) + lookup16<-zero, 16, 3>(high >> bit_of);
#else
    const I upper = bit_of < 4 ? high << (4 - bit_of) : high >> (bit_of - 4);  // at bits 4 and 5
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
    const I word = j % 2 == 0 ? first : second;
    return to_float((I)((S)(word << (24 - 8 * (j / 2))) >> 24));
  }
};

template <int zero>
struct Chunk<Codes::e2m1, zero> {
  I low;
  INFERX_INLINE Chunk(const uint32_t* words, int chunk) : low(load_words(words, chunk)) {}
  template <int j>
  INFERX_INLINE F get() const {
#if defined(__AVX512F__)
    constexpr F table = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    return (F)_mm512_permutexvar_ps((__m512i)(low >> (4 * j)), (__m512)table);
#else
    // One bit of mantissa and two of exponent, where a float has them: then the bias is one multiplication.
    const I code = low >> (4 * j);
    const F magnitude = (F)((code & 7) << 22) * 0x1p127f;
    return (F)((I)magnitude | (code & 8) << 28);
#endif
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
    if constexpr (kind == Scales::none) return;
    if constexpr (kind == Scales::e8m0) {
      const I exponent = load_uint8(block + column);
      const I small = (I)(exponent < 2);  // all ones where half of the power is no normal number
      scale = (F)((small & (0x00200000 << (exponent & 1))) | (~small & ((exponent - 1) << 23)));
      return;
    }
    scale = load_half(block + 2 * column);
    if constexpr (kind == Scales::k) scale *= signed_to_float<8>(load_uint8(block + header.scale + entry));
    if constexpr (kind == Scales::km) scale *= to_float(load_uint8(block + header.scale + entry));
    if constexpr (kind == Scales::dm) min = load_half(block + header.m + 2 * column);
    if constexpr (kind == Scales::km) {
      min = -load_half(block + header.m + 2 * column) * to_float(load_uint8(block + header.min + entry));
    }
  }
};

// Float formats: `elements` points to the group's first k in the chunk's first column.
template <WeightFormat format>
INFERX_INLINE F load_element(const uint8_t* p) {
  if constexpr (format == WeightFormat::f32) return load<F>(p);
  if constexpr (format == WeightFormat::f16) return load_half(p);
  if constexpr (format == WeightFormat::bf16) return load_bfloat(p);
}

template <WeightFormat format>
struct FloatChunk {
  const uint8_t* first;
  template <int j>
  INFERX_INLINE F get() const {
    return load_element<format>(first + j * kTileColumns * traits_of(format).source_bytes);
  }
};

// Where a kernel finds the weights of one slice of a tile, as Slice wants it: in the packed form.
template <WeightFormat format>
struct PackedSlice {
  static constexpr FormatTraits t = traits_of(format);
  static constexpr int unit = t.unit;
  static constexpr bool scaled = !is_float(format);
  static constexpr bool minima = has_min(format);
  static constexpr int kUnitsPerBlock = t.block / t.unit;  // of quantised formats

  const uint8_t* tile;
  int column;
  bool first_use;  // in this call: later ones find the tile in the cache

  INFERX_INLINE auto chunk(int64_t u, int c, int v) const {
    if constexpr (scaled) {
      const int in_block = static_cast<int>(u % kUnitsPerBlock);
      constexpr int units_per_group = kGroup / unit;
      const uint8_t* group =
          block_of(u) + header_layout(format).codes + in_block / units_per_group * group_bytes(format);
      return Chunk<t.codes, t.zero>(reinterpret_cast<const uint32_t*>(group) + column + v * kLanes,
                                    in_block % units_per_group * (unit / 8) + c);
    } else {
      return FloatChunk<format>{element_at(u * unit + c * 8, v)};
    }
  }
  INFERX_INLINE F element(int64_t k, int v) const { return load_element<format>(element_at(k, v)); }
  INFERX_INLINE UnitScales<format> scales(int64_t u, int v) const {
    return UnitScales<format>(block_of(u), static_cast<int>(u % kUnitsPerBlock), column + v * kLanes);
  }

  // The hardware's prefetchers lose the stream among the words of several units.  8 KB ahead is what a core
  // has in flight at 40 GB/s and 200 ns; tiles follow each other, so that running past the end of one is
  // right too.
  INFERX_INLINE void prefetch(int64_t u, int c) const {
    if (!first_use) return;
    constexpr int chunks = unit / 8;
    constexpr int64_t bytes =
        scaled ? block_bytes(format) / kUnitsPerBlock / chunks : int64_t{8} * kTileColumns * t.source_bytes;
    const uint8_t* ahead = tile + (u * chunks + c) * bytes + 8192;
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + i);
  }

 private:
  INFERX_INLINE const uint8_t* block_of(int64_t u) const {
    return tile + u / kUnitsPerBlock * block_bytes(format);
  }
  INFERX_INLINE const uint8_t* element_at(int64_t k, int v) const {
    return tile + (k * kTileColumns + column + v * kLanes) * t.source_bytes;
  }
};

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
