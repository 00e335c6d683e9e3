// Single rows of a packed matrix in float32: for embedding tables, and for all that wants the plain matrix.
#include <cstring>

#include "cpu/packed_weight.h"
#include "cpu/parallel.h"

namespace inferx::cpu {
namespace {

// The codes of one group and column, zero point taken off.
template <Codes kind>
void read_group(const uint32_t* words, int zero, int* codes) {
  for (int k = 0; k < kGroup; ++k) {
    const int chunk = k / 8, byte = k % 8 / 2 * 8, odd = k % 2;  // byte: its first bit
    if (kind == Codes::c8) {
      codes[k] = static_cast<int8_t>(words[(2 * chunk + odd) * kTileColumns] >> byte);
      continue;
    }
    int code = words[chunk * kTileColumns] >> (byte + 4 * odd) & 15;
    if (kind == Codes::c5) code |= (words[4 * kTileColumns] >> (byte + 2 * chunk + odd) & 1) << 4;
    if (kind == Codes::c6) {
      code |= (words[(4 + chunk / 2) * kTileColumns] >> (byte + 4 * (chunk % 2) + 2 * odd) & 3) << 4;
    }
    if (kind == Codes::e2m1) {
      constexpr int doubled[] = {0, 1, 2, 3, 4, 6, 8, 12};
      code = (code & 8) != 0 ? -doubled[code & 7] : doubled[code];
    }
    codes[k] = code - zero;
  }
}

float load_half(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, 2);
  return half_to_float(half);
}

struct UnitScale {
  float scale, min;
};

template <WeightFormat format>
UnitScale unit_scale(const uint8_t* block, int column, int unit) {
  constexpr HeaderLayout header = header_layout(format);
  constexpr Scales kind = traits_of(format).scales;
  if constexpr (kind == Scales::e8m0) return {half_power(block[column]), 0.0f};
  const uint8_t* entry = block + unit * kTileColumns + column;
  UnitScale s{load_half(block + 2 * column),
              has_min(format) ? load_half(block + header.m + 2 * column) : 0.0f};
  if constexpr (kind == Scales::k) s.scale *= static_cast<int8_t>(entry[header.scale]);
  if constexpr (kind == Scales::km) {
    s.scale *= entry[header.scale];
    s.min *= -static_cast<float>(entry[header.min]);
  }
  return s;
}

template <WeightFormat format>
void dequantize_block(const uint8_t* block, int column, float* out) {
  constexpr FormatTraits t = traits_of(format);
  for (int group = 0; group < t.block / kGroup; ++group) {
    int codes[kGroup];
    const uint8_t* words = block + header_layout(format).codes + group * group_bytes(format);
    read_group<t.codes>(reinterpret_cast<const uint32_t*>(words) + column, t.zero, codes);
    for (int first = 0; first < kGroup; first += t.unit, out += t.unit) {
      const UnitScale s = unit_scale<format>(block, column, (group * kGroup + first) / t.unit);
      for (int k = 0; k < t.unit; ++k) {
        const float product = s.scale * static_cast<float>(codes[first + k]);  // exact
        out[k] = has_min(format) ? product + s.min : product;
      }
    }
  }
}

template <WeightFormat format>
void dequantize_blocks(const PackedWeight& w, int64_t row, float* out) {
  const uint8_t* block = w.tile(row / kTileColumns);
  for (int64_t b = 0; b < w.blocks(); ++b, block += block_bytes(format)) {
    dequantize_block<format>(block, static_cast<int>(row % kTileColumns), out + b * traits_of(format).block);
  }
}

template <class Element, class Convert>
void convert_row(const PackedWeight& w, int64_t row, float* out, const Convert& convert) {
  const auto* elements = reinterpret_cast<const Element*>(w.tile(row / kTileColumns)) + row % kTileColumns;
  for (int64_t k = 0; k < w.k; ++k) out[k] = convert(elements[k * kTileColumns]);
}

float from_bfloat16(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

}  // namespace

void dequantize_row(const PackedWeight& w, int64_t row, float* out) {
  switch (w.format) {
    case WeightFormat::f32:
      return convert_row<float>(w, row, out, [](float v) { return v; });
    case WeightFormat::f16:
      return convert_row<uint16_t>(w, row, out, half_to_float);
    case WeightFormat::bf16:
      return convert_row<uint16_t>(w, row, out, from_bfloat16);
    case WeightFormat::q4_0:
      return dequantize_blocks<WeightFormat::q4_0>(w, row, out);
    case WeightFormat::q4_1:
      return dequantize_blocks<WeightFormat::q4_1>(w, row, out);
    case WeightFormat::q5_0:
      return dequantize_blocks<WeightFormat::q5_0>(w, row, out);
    case WeightFormat::q5_1:
      return dequantize_blocks<WeightFormat::q5_1>(w, row, out);
    case WeightFormat::q8_0:
      return dequantize_blocks<WeightFormat::q8_0>(w, row, out);
    case WeightFormat::q4_k:
      return dequantize_blocks<WeightFormat::q4_k>(w, row, out);
    case WeightFormat::q5_k:
      return dequantize_blocks<WeightFormat::q5_k>(w, row, out);
    case WeightFormat::q6_k:
      return dequantize_blocks<WeightFormat::q6_k>(w, row, out);
    case WeightFormat::mxfp4:
      return dequantize_blocks<WeightFormat::mxfp4>(w, row, out);
  }
}

void dequantize(const PackedWeight& w, float* out, int64_t row_stride) {
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, w.k));
  parallel_for(w.n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) dequantize_row(w, row, out + row * row_stride);
  });
}

}  // namespace inferx::cpu
