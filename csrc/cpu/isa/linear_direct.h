// The linear kernel for a few rows (decode): bound by reading the weights, which are decoded in registers.
#pragma once
#include "cpu/isa/linear_codes.h"
#include "cpu/isa/linear_epilogue.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

constexpr int kVectors = 2;  // neighbouring vectors of columns at a time
constexpr int kSlice = kVectors * kLanes;

// Calls f(std::integral_constant<int, 0>) ... without <utility>: standard templates that stay out of line
// would be compiled for this instruction set and could be picked by the linker for the others.
template <int value>
struct Index {
  static constexpr int v = value;
};
template <int count, int start = 0, class Fn>
INFERX_INLINE void unroll(const Fn& fn) {
  if constexpr (start < count) {
    fn(Index<start>{});
    unroll<count, start + 1>(fn);
  }
}

// `Rows` rows times one slice of a tile's columns.  `Units` units are summed side by side, so that enough
// independent chains of multiply-adds hide their latency; they still enter the total one after the other.
template <WeightFormat format, int Rows>
struct QuantisedSlice {
  static constexpr FormatTraits t = traits_of(format);
  static constexpr HeaderLayout header = header_layout(format);
  static constexpr int kUnitChunks = t.unit / 8;
  static constexpr int kUnitsPerBlock = t.block / t.unit;

  const float* x;
  int64_t x_stride;
  const float* sums;
  int64_t groups;
  const uint8_t* tile;
  int column;
  F total[Rows][kVectors];

  INFERX_INLINE const uint8_t* block_of(int64_t unit) const {
    return tile + unit / kUnitsPerBlock * block_bytes(format);
  }

  template <int Units>
  INFERX_INLINE void add(int64_t unit) {
    F p[Units][Rows][kVectors] = {};
    for (int c = 0; c < kUnitChunks; ++c) {
#pragma GCC unroll 4
      for (int u = 0; u < Units; ++u) {
        const int in_block = static_cast<int>((unit + u) % kUnitsPerBlock);
        const int chunk = in_block % (kGroup / t.unit) * kUnitChunks + c;
        const uint8_t* group =
            block_of(unit + u) + header.codes + in_block / (kGroup / t.unit) * group_bytes(format);
        const auto* words = reinterpret_cast<const uint32_t*>(group) + column;
        const float* xk = x + (unit + u) * t.unit + c * 8;
        const Chunk<t.codes, t.zero> codes0(words, chunk), codes1(words + kLanes, chunk);
        unroll<8>([&](auto j) __attribute__((always_inline)) {
          const F w0 = codes0.template get<j.v>(), w1 = codes1.template get<j.v>();
          for (int r = 0; r < Rows; ++r) {
            const F value = splat(xk[r * x_stride + j.v]);
            p[u][r][0] = fma(value, w0, p[u][r][0]);
            p[u][r][1] = fma(value, w1, p[u][r][1]);
          }
        });
      }
    }
    for (int u = 0; u < Units; ++u) {
      for (int v = 0; v < kVectors; ++v) {
        const UnitScales<format> s(block_of(unit + u), static_cast<int>((unit + u) % kUnitsPerBlock),
                                   column + v * kLanes);
        for (int r = 0; r < Rows; ++r) {
          total[r][v] = fma(p[u][r][v], s.scale, total[r][v]);
          if constexpr (has_min(format)) {
            total[r][v] = fma(splat(sums[r * groups + unit + u]), s.min, total[r][v]);
          }
        }
      }
    }
  }

  INFERX_INLINE void run(int64_t units) {
    constexpr int kSideBySide = Rows == 1 ? 4 : Rows == 2 ? 2 : 1;
    int64_t unit = 0;
    for (; unit + kSideBySide <= units; unit += kSideBySide) add<kSideBySide>(unit);
    for (; unit < units; ++unit) add<1>(unit);
  }
};

template <WeightFormat format, int Rows>
struct FloatSlice {
  const float* x;
  int64_t x_stride;
  const uint8_t* tile;
  int column;
  F total[Rows][kVectors];

  INFERX_INLINE void add(int64_t k0, int count) {
    constexpr int kElement = traits_of(format).source_bytes;
    F p[Rows][kVectors] = {};
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) {
      const uint8_t* element = tile + ((k0 + k) * kTileColumns + column) * kElement;
      const F w0 = load_element<format>(element), w1 = load_element<format>(element + kLanes * kElement);
      for (int r = 0; r < Rows; ++r) {
        const F value = splat(x[r * x_stride + k0 + k]);
        p[r][0] = fma(value, w0, p[r][0]);
        p[r][1] = fma(value, w1, p[r][1]);
      }
    }
    for (int r = 0; r < Rows; ++r) {
      for (int v = 0; v < kVectors; ++v) total[r][v] += p[r][v];
    }
  }

  INFERX_INLINE void run(int64_t k) {
    int64_t k0 = 0;
    for (; k0 + kGroup <= k; k0 += kGroup) add(k0, kGroup);
    if (k0 < k) add(k0, static_cast<int>(k - k0));
  }
};

template <WeightFormat format, int Rows>
void direct_tile(const LinearParams& p, const float* sums, int64_t tile) {
  float totals[Rows * kTileColumns];
  for (int column = 0; column < kTileColumns; column += kSlice) {
    const auto keep = [&](const auto& slice) {
      for (int r = 0; r < Rows; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          store(totals + r * kTileColumns + column + v * kLanes, slice.total[r][v]);
        }
      }
    };
    if constexpr (is_float(format)) {
      FloatSlice<format, Rows> slice = {p.x, p.x_stride, p.weight.tile(tile), column, {}};
      slice.run(p.weight.k);
      keep(slice);
    } else {
      QuantisedSlice<format, Rows> slice = {
          p.x, p.x_stride, sums, p.weight.k / kGroup, p.weight.tile(tile), column, {}};
      slice.run(p.weight.k / traits_of(format).unit);
      keep(slice);
    }
  }
  write_rows(p, totals, Rows, 0, tile);
}

template <WeightFormat format>
void direct_tiles(const LinearParams& p, const float* sums, int64_t first, int64_t last) {
  for (int64_t tile = first; tile < last; ++tile) {
    switch (p.m) {
      case 1:
        direct_tile<format, 1>(p, sums, tile);
        break;
      case 2:
        direct_tile<format, 2>(p, sums, tile);
        break;
      case 3:
        direct_tile<format, 3>(p, sums, tile);
        break;
      case 4:
        direct_tile<format, 4>(p, sums, tile);
        break;
    }
  }
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
