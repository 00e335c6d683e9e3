// Weight matrices [N, K] in the layout that the linear kernels read.
//
// Columns here are output features (rows of the checkpoint's matrix).  They lie in tiles of 32, each tile a
// run of blocks along K, each block the block of the source format for all 32 columns:
//
//     tile 0: block 0, block 1, ...      block: header (scales), then per group of 32 k its codes
//     tile 1: ...                        codes: 32-bit words [words_per_group][32 columns]
//
// so a kernel broadcasts x[m][k] and multiplies it with a vector of neighbouring columns, every column
// summing over k in the same order, and a thread that owns a range of tiles reads one sequential stream.
// Words hold the codes of one column.  Eight codes k = 8c + j are taken as four even and four odd ones, byte
// b of each for j = 2b and j = 2b + 1, so that integer kernels get four codes a word by a shift and a mask:
//
//     4 bit: word c has the even codes in the low and the odd ones in the high nibbles
//     5 bit: the four words of 4 bit, then one word with the fifth bits, at bit 2c (odd: 2c + 1) of byte b
//     6 bit: the four words of 4 bit, then two words for 16 codes each with the upper two bits, at bit
//            4 (c % 2) (odd: + 2) of byte b
//     8 bit: word 2c has the even, word 2c + 1 the odd ones, signed
//     e2m1:  as 4 bit; codes stand for the doubled values 0, 1, 2, 3, 4, 6, 8, 12, with 8 added for the
//     negative
//
// Float formats have no header and store [32 k][32 columns] elements.  N is padded to the tile and K of the
// float formats to the group, with zeros.  A block format's packed size is its source's, up to 3 % for 6-bit
// scales kept as bytes.  The dequantised value is  d * (code - zero) + m  with the product exact in float32.
#pragma once
#include <cstddef>
#include <cstdint>

namespace inferx::cpu {

constexpr int kTileColumns = 32;  // two AVX-512, four AVX2, eight 128-bit vectors
constexpr int kGroup = 32;        // k per group of codes: the smallest GGML block

enum class WeightFormat : uint8_t { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, mxfp4 };
constexpr int kWeightFormats = 12;

enum class Codes : uint8_t { f32, f16, bf16, c4, c5, c6, c8, e2m1 };

// none: floats.  d: one f16 per group.  dm: f16 d and m per group.  k: f16 per block times int8 per 16 k.
// km: f16 d and dmin per block, times uint8 scale and min per group; m = -dmin * min.
// e8m0: a power of two per group, as its biased exponent (OCP Microscaling Formats, 2023).
enum class Scales : uint8_t { none, d, dm, k, km, e8m0 };

// All that the layout of a format follows from.
struct FormatTraits {
  const char* name;  // GGML's
  Codes codes;
  Scales scales;
  int zero;          // subtracted from the stored code
  int block;         // k per block
  int unit;          // k per scale, which is the length of a partial sum; floats are free to choose
  int source_bytes;  // per block of one row in the checkpoint; per element for floats
};

constexpr FormatTraits kFormatTraits[kWeightFormats] = {
    {"F32", Codes::f32, Scales::none, 0, 32, 128, 4},   {"F16", Codes::f16, Scales::none, 0, 32, 128, 2},
    {"BF16", Codes::bf16, Scales::none, 0, 32, 128, 2}, {"Q4_0", Codes::c4, Scales::d, 8, 32, 32, 18},
    {"Q4_1", Codes::c4, Scales::dm, 0, 32, 32, 20},     {"Q5_0", Codes::c5, Scales::d, 16, 32, 32, 22},
    {"Q5_1", Codes::c5, Scales::dm, 0, 32, 32, 24},     {"Q8_0", Codes::c8, Scales::d, 0, 32, 32, 34},
    {"Q4_K", Codes::c4, Scales::km, 0, 256, 32, 144},   {"Q5_K", Codes::c5, Scales::km, 0, 256, 32, 176},
    {"Q6_K", Codes::c6, Scales::k, 32, 256, 16, 210},   {"MXFP4", Codes::e2m1, Scales::e8m0, 0, 32, 32, 17},
};

constexpr const FormatTraits& traits_of(WeightFormat format) {
  return kFormatTraits[static_cast<int>(format)];
}
constexpr bool is_float(WeightFormat format) { return traits_of(format).scales == Scales::none; }
constexpr bool has_min(WeightFormat format) {
  return traits_of(format).scales == Scales::dm || traits_of(format).scales == Scales::km;
}

// Bytes of one group's codes for the 32 columns.
constexpr int group_bytes(WeightFormat format) {
  constexpr int words[] = {32, 16, 16, 4, 5, 6, 8, 4};
  return words[static_cast<int>(traits_of(format).codes)] * 4 * kTileColumns;
}

// A block's header, as byte offsets: f16 d[32] (e8m0: uint8), f16 m[32] (or dmin), int8
// scale[block/unit][32], uint8 min[...][32].
struct HeaderLayout {
  int m, scale, min, codes;  // d is at 0; codes is the header's size
};
constexpr HeaderLayout header_layout(WeightFormat format) {
  const FormatTraits& t = traits_of(format);
  constexpr int half = 2 * kTileColumns;
  const int bytes = t.block / t.unit * kTileColumns;
  switch (t.scales) {
    case Scales::d:
      return {0, 0, 0, half};
    case Scales::dm:
      return {half, 0, 0, 2 * half};
    case Scales::k:
      return {0, half, 0, half + bytes};
    case Scales::km:
      return {half, 2 * half, 2 * half + bytes, 2 * half + 2 * bytes};
    case Scales::e8m0:
      return {0, 0, 0, kTileColumns};
    default:
      return {0, 0, 0, 0};
  }
}

constexpr int64_t block_bytes(WeightFormat format) {
  return header_layout(format).codes + int64_t{1} * traits_of(format).block / kGroup * group_bytes(format);
}

// A packed matrix.  Does not own `data`, which is 64-byte aligned.
struct PackedWeight {
  WeightFormat format = WeightFormat::f32;
  int64_t n = 0, k = 0;
  const uint8_t* data = nullptr;
  // Tiles of the upper and the lower half of an even number alternate in memory: whoever needs gate and up
  // columns together then reads one stream.
  bool halves_alternate = false;

  int64_t tiles() const { return (n + kTileColumns - 1) / kTileColumns; }
  int64_t blocks() const { return (k + traits_of(format).block - 1) / traits_of(format).block; }
  int64_t tile_bytes() const { return blocks() * block_bytes(format); }
  int64_t nbytes() const { return tiles() * tile_bytes(); }
  int64_t tile_offset(int64_t index) const {
    const int64_t half = tiles() / 2;
    const int64_t at = !halves_alternate ? index : index < half ? 2 * index : 2 * (index - half) + 1;
    return at * tile_bytes();
  }
  const uint8_t* tile(int64_t index) const { return data + tile_offset(index); }
};

// The format of a GGML type name or F32, F16, BF16.  False: not supported.
bool find_format(const char* name, WeightFormat& format);

// Repacks `source`, rows `row_stride` bytes apart, into `packed` (packed.nbytes() bytes, 64-byte aligned).
void pack_weight(const uint8_t* source, int64_t row_stride, const PackedWeight& weight, uint8_t* packed);

// Writes row `row` in float32, bit for bit the value that GGML's reference dequantisation has.
void dequantize_row(const PackedWeight& weight, int64_t row, float* out);
void dequantize(const PackedWeight& weight, float* out, int64_t row_stride);

// Half of 2^(exponent - 127), since e2m1 codes stand for doubled values.
inline float half_power(uint8_t exponent) {
  union {
    uint32_t bits;
    float value;
  } u = {exponent < 2 ? uint32_t{0x00200000} << exponent : (uint32_t{exponent} - 1) << 23};
  return u.value;
}

// Exact; NaN stays NaN.
inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13;
  union {
    uint32_t bits;
    float value;
  } u = {magnitude};
  u.value *= 0x1p112f;  // moves the exponent's bias; a subnormal half becomes a normal float
  if ((half & 0x7c00) == 0x7c00) u.bits = magnitude | 0x7f800000;
  u.bits |= sign;
  return u.value;
}

}  // namespace inferx::cpu
