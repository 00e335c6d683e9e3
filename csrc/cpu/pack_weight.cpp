#include <cstring>

#include "cpu/packed_weight.h"
#include "cpu/parallel.h"

namespace inferx::cpu {
namespace {

// ---- Reading one block of a row in the checkpoint's layout ------------------------------------------
// Codes come out as bytes in order of k, as stored (before the zero point is taken off).

struct SourceBlock {
  uint8_t codes[256];
  uint16_t d, m;  // e8m0: d is a byte
  uint8_t scales[16], mins[8];
};

uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

uint32_t load_u32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

// `count` bytes hold codes i in the low and i + count in the high nibbles.
void read_nibbles(const uint8_t* p, int count, uint8_t* codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = p[i] & 15;
    codes[count + i] = p[i] >> 4;
  }
}

void read_fifth_bits(const uint8_t* p, uint8_t* codes) {
  const uint32_t bits = load_u32(p);
  for (int i = 0; i < 32; ++i) codes[i] |= (bits >> i & 1) << 4;
}

// The 12 bytes of Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minima.
void read_k_scales(const uint8_t* p, SourceBlock& block) {
  for (int i = 0; i < 4; ++i) {
    block.scales[i] = p[i] & 63;
    block.mins[i] = p[4 + i] & 63;
    block.scales[4 + i] = (p[8 + i] & 15) | (p[i] >> 6 << 4);
    block.mins[4 + i] = (p[8 + i] >> 4) | (p[4 + i] >> 6 << 4);
  }
}

void read_q4_k(const uint8_t* p, SourceBlock& block) {
  block.d = load_u16(p);
  block.m = load_u16(p + 2);
  read_k_scales(p + 4, block);
  for (int i = 0; i < 4; ++i) read_nibbles(p + 16 + 32 * i, 32, block.codes + 64 * i);
}

void read_q5_k(const uint8_t* p, SourceBlock& block) {
  block.d = load_u16(p);
  block.m = load_u16(p + 2);
  read_k_scales(p + 4, block);
  const uint8_t* high = p + 16;
  for (int i = 0; i < 4; ++i) read_nibbles(p + 48 + 32 * i, 32, block.codes + 64 * i);
  for (int group = 0; group < 8; ++group) {
    for (int i = 0; i < 32; ++i) block.codes[32 * group + i] |= (high[i] >> group & 1) << 4;
  }
}

void read_q6_k(const uint8_t* p, SourceBlock& block) {
  for (int half = 0; half < 2; ++half) {
    uint8_t* codes = block.codes + 128 * half;
    const uint8_t* low = p + 64 * half;
    const uint8_t* high = p + 128 + 32 * half;
    read_nibbles(low, 64, codes);
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int i = 0; i < 32; ++i) codes[32 * quarter + i] |= (high[i] >> (2 * quarter) & 3) << 4;
    }
  }
  std::memcpy(block.scales, p + 192, 16);
  block.d = load_u16(p + 208);
}

void read_block(WeightFormat format, const uint8_t* p, SourceBlock& block) {
  switch (format) {
    case WeightFormat::q4_0:
      block.d = load_u16(p);
      read_nibbles(p + 2, 16, block.codes);
      break;
    case WeightFormat::q4_1:
      block.d = load_u16(p);
      block.m = load_u16(p + 2);
      read_nibbles(p + 4, 16, block.codes);
      break;
    case WeightFormat::q5_0:
      block.d = load_u16(p);
      read_nibbles(p + 6, 16, block.codes);
      read_fifth_bits(p + 2, block.codes);
      break;
    case WeightFormat::q5_1:
      block.d = load_u16(p);
      block.m = load_u16(p + 2);
      read_nibbles(p + 8, 16, block.codes);
      read_fifth_bits(p + 4, block.codes);
      break;
    case WeightFormat::q8_0:
      block.d = load_u16(p);
      std::memcpy(block.codes, p + 2, 32);
      break;
    case WeightFormat::q4_k:
      read_q4_k(p, block);
      break;
    case WeightFormat::q5_k:
      read_q5_k(p, block);
      break;
    case WeightFormat::q6_k:
      read_q6_k(p, block);
      break;
    case WeightFormat::mxfp4:
      block.d = p[0];
      read_nibbles(p + 1, 16, block.codes);
      break;
    default:
      break;
  }
}

// ---- Writing one column of a packed block -----------------------------------------------------------

// Bytes 0, 2, 4, 6 and 1, 3, 5, 7 of eight codes.
struct EvenOdd {
  uint32_t even, odd;
};
uint32_t gather_even_bytes(uint64_t v) {
  v &= 0x00ff00ff00ff00ff;
  v = (v | v >> 8) & 0x0000ffff0000ffff;
  return static_cast<uint32_t>(v | v >> 16);
}
EvenOdd split(const uint8_t* codes) {
  uint64_t v;
  std::memcpy(&v, codes, 8);
  return {gather_even_bytes(v), gather_even_bytes(v >> 8)};
}

// `words`: this column's first word; the next word of the column lies a tile's width further.
void write_group(Codes kind, const uint8_t* codes, uint32_t* words) {
  const auto put = [&](int index, uint32_t word) { words[index * kTileColumns] = word; };
  uint32_t fifth = 0, upper[2] = {};
  for (int c = 0; c < 4; ++c) {
    const auto [even, odd] = split(codes + 8 * c);
    if (kind == Codes::c8) {
      put(2 * c, even);
      put(2 * c + 1, odd);
      continue;
    }
    put(c, (even & 0x0f0f0f0f) | (odd & 0x0f0f0f0f) << 4);
    fifth |= ((even >> 4 & 0x01010101) | (odd >> 4 & 0x01010101) << 1) << (2 * c);
    upper[c / 2] |= ((even >> 4 & 0x03030303) | (odd >> 4 & 0x03030303) << 2) << (4 * (c % 2));
  }
  if (kind == Codes::c5) put(4, fifth);
  if (kind == Codes::c6) {
    put(4, upper[0]);
    put(5, upper[1]);
  }
}

void write_block(WeightFormat format, const SourceBlock& block, int column, uint8_t* packed) {
  const FormatTraits& t = traits_of(format);
  const HeaderLayout header = header_layout(format);
  if (t.scales == Scales::e8m0) {
    packed[column] = static_cast<uint8_t>(block.d);
  } else {
    std::memcpy(packed + 2 * column, &block.d, 2);
  }
  if (header.m) std::memcpy(packed + header.m + 2 * column, &block.m, 2);
  for (int u = 0; header.scale && u < t.block / t.unit; ++u) {
    packed[header.scale + u * kTileColumns + column] = block.scales[u];
    if (header.min) packed[header.min + u * kTileColumns + column] = block.mins[u];
  }
  for (int group = 0; group < t.block / kGroup; ++group) {
    uint8_t* words = packed + header.codes + group * group_bytes(format);
    write_group(t.codes, block.codes + group * kGroup, reinterpret_cast<uint32_t*>(words) + column);
  }
}

// ---- Tiles ------------------------------------------------------------------------------------------

void pack_quantised_tile(const uint8_t* source, int64_t row_stride, int columns, const PackedWeight& w,
                         uint8_t* packed) {
  const int source_bytes = traits_of(w.format).source_bytes;
  const int64_t blocks = w.blocks(), bytes = block_bytes(w.format);
  if (columns < kTileColumns) std::memset(packed, 0, blocks * bytes);
  SourceBlock block;
  for (int64_t b = 0; b < blocks; ++b) {
    for (int column = 0; column < columns; ++column) {
      read_block(w.format, source + column * row_stride + b * source_bytes, block);
      write_block(w.format, block, column, packed + b * bytes);
    }
  }
}

template <class Element>
void pack_float_tile(const uint8_t* source, int64_t row_stride, int columns, const PackedWeight& w,
                     uint8_t* packed) {
  if (columns < kTileColumns || w.k % kGroup != 0) std::memset(packed, 0, w.tile_bytes());
  auto* out = reinterpret_cast<Element*>(packed);
  // Eight k at a time: the 32 rows' cache lines and the eight output rows then stay in L1.
  for (int64_t k0 = 0; k0 < w.k; k0 += 8) {
    const int count = static_cast<int>(std::min<int64_t>(8, w.k - k0));
    for (int column = 0; column < columns; ++column) {
      Element row[8];
      std::memcpy(row, source + column * row_stride + k0 * sizeof(Element), count * sizeof(Element));
      for (int i = 0; i < count; ++i) out[(k0 + i) * kTileColumns + column] = row[i];
    }
  }
}

}  // namespace

bool find_format(const char* name, WeightFormat& format) {
  for (int i = 0; i < kWeightFormats; ++i) {
    if (std::strcmp(kFormatTraits[i].name, name) == 0) {
      format = static_cast<WeightFormat>(i);
      return true;
    }
  }
  return false;
}

void pack_weight(const uint8_t* source, int64_t row_stride, const PackedWeight& w, uint8_t* packed) {
  const int64_t grain = std::max<int64_t>(1, (1 << 16) / std::max<int64_t>(1, w.k * kTileColumns));
  parallel_for(w.tiles(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t first = tile * kTileColumns;
      const int columns = static_cast<int>(std::min<int64_t>(kTileColumns, w.n - first));
      const uint8_t* rows = source + first * row_stride;
      uint8_t* out = packed + w.tile_offset(tile);
      if (!is_float(w.format)) {
        pack_quantised_tile(rows, row_stride, columns, w, out);
      } else if (w.format == WeightFormat::f32) {
        pack_float_tile<uint32_t>(rows, row_stride, columns, w, out);
      } else {
        pack_float_tile<uint16_t>(rows, row_stride, columns, w, out);
      }
    }
  });
}

}  // namespace inferx::cpu
