// The linear kernel for many rows (prefill): bound by multiply-adds.  A stretch of K of one tile is decoded
// into a buffer in L1 and used by all panels of the call, each a block of rows that fills the registers.
#pragma once
#include "cpu/isa/linear_codes.h"
#include "cpu/isa/linear_direct.h"
#include "cpu/isa/linear_epilogue.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// Two vectors of columns per row leave registers for the weights and one x: 24 + 2 + 1 of 32, or 12 + 2 + 1
// of 16.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kPanelRows = 12;
#else
constexpr int kPanelRows = 6;
#endif
// Ten panels of twelve rows spread the decoding over 120 rows; their totals (15 KB) and the buffer (16 KB)
// fit L1.
constexpr int kPanelsPerCall = 120 / kPanelRows;
constexpr int kStretch = 128;  // k in the buffer

// Decoded weights of one tile: codes [k][32] and, per unit, scales and minima [unit][32].
struct Decoded {
  alignas(64) float codes[kStretch * kTileColumns];
  alignas(64) float scales[kStretch / 16 * kTileColumns];
  alignas(64) float mins[kStretch / 32 * kTileColumns];
};

template <WeightFormat format>
void decode(const uint8_t* tile, int64_t k0, int count, Decoded& out) {
  constexpr FormatTraits t = traits_of(format);
  if constexpr (is_float(format)) {
    for (int i = 0; i < count * kTileColumns; i += kLanes) {
      store(out.codes + i, load_element<format>(tile + (k0 * kTileColumns + i) * t.source_bytes));
    }
  } else {
    constexpr HeaderLayout header = header_layout(format);
    for (int k = 0; k < count; k += kGroup) {
      const uint8_t* block = tile + (k0 + k) / t.block * block_bytes(format);
      const int group = static_cast<int>((k0 + k) % t.block / kGroup);
      const auto* words =
          reinterpret_cast<const uint32_t*>(block + header.codes + group * group_bytes(format));
      for (int column = 0; column < kTileColumns; column += kLanes) {
        float* codes = out.codes + k * kTileColumns + column;
        for (int chunk = 0; chunk < 4; ++chunk) {
          const Chunk<t.codes, t.zero> decoded(words + column, chunk);
          unroll<8>([&](auto j) __attribute__((always_inline)) {
            store(codes + (chunk * 8 + j.v) * kTileColumns, decoded.template get<j.v>());
          });
        }
        for (int u = 0; u < kGroup / t.unit; ++u) {
          const UnitScales<format> s(block, group * (kGroup / t.unit) + u, column);
          store(out.scales + (k / t.unit + u) * kTileColumns + column, s.scale);
          if constexpr (has_min(format)) store(out.mins + k / kGroup * kTileColumns + column, s.min);
        }
      }
    }
  }
}

// One panel times one stretch: codes, scales and mins as in Decoded; x [count][Rows], sums [unit][Rows]; adds
// to totals [Rows][32].
template <int Rows, int unit, bool scaled, bool minima>
void multiply(const float* codes, const float* scales, const float* mins, const float* x, const float* sums,
              int count, float* totals) {
  for (int column = 0; column < kTileColumns; column += kSlice) {
    for (int k0 = 0; k0 < count; k0 += unit) {
      F p[Rows][kVectors] = {};
      const int end = !scaled && count - k0 < unit ? count : k0 + unit;
      for (int k = k0; k < end; ++k) {
        const F w0 = load<F>(codes + k * kTileColumns + column);
        const F w1 = load<F>(codes + k * kTileColumns + column + kLanes);
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
          const F value = splat(x[k * Rows + r]);
          p[r][0] = fma(value, w0, p[r][0]);
          p[r][1] = fma(value, w1, p[r][1]);
        }
      }
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        const int entry = k0 / unit * kTileColumns + column + v * kLanes;
        const F scale = scaled ? load<F>(scales + entry) : F{};
        const F min = minima ? load<F>(mins + entry) : F{};
#pragma GCC unroll 12
        for (int r = 0; r < Rows; ++r) {
          float* at = totals + r * kTileColumns + column + v * kLanes;
          F total = load<F>(at);
          total = scaled ? fma(p[r][v], scale, total) : total + p[r][v];
          if (minima) total = fma(splat(sums[k0 / unit * Rows + r]), min, total);
          store(at, total);
        }
      }
    }
  }
}

template <int unit, bool scaled, bool minima, int Rows = kPanelRows>
INFERX_INLINE void multiply_rows(int rows, const float* codes, const float* scales, const float* mins,
                                 const float* x, const float* sums, int count, float* totals) {
  if constexpr (Rows > 1) {
    if (rows < Rows) {
      return multiply_rows<unit, scaled, minima, Rows - 1>(rows, codes, scales, mins, x, sums, count, totals);
    }
  }
  multiply<Rows, unit, scaled, minima>(codes, scales, mins, x, sums, count, totals);
}

template <WeightFormat format>
void tiled_tile(const LinearParams& p, const Panel* panels, int panel_count, int64_t tile_index) {
  constexpr FormatTraits t = traits_of(format);
  alignas(64) float totals[kPanelsPerCall * kPanelRows * kTileColumns];
  Decoded decoded;
  for (int i = 0; i < panel_count * kPanelRows * kTileColumns; i += kLanes) store(totals + i, F{});
  const uint8_t* tile = p.weight.tile(tile_index);
  for (int64_t k0 = 0; k0 < p.weight.k; k0 += kStretch) {
    const int count = p.weight.k - k0 < kStretch ? static_cast<int>(p.weight.k - k0) : kStretch;
    const float* codes = decoded.codes;
    if constexpr (format == WeightFormat::f32) {
      codes = reinterpret_cast<const float*>(tile) + k0 * kTileColumns;
    } else {
      decode<format>(tile, k0, count, decoded);
    }
    for (int i = 0; i < panel_count; ++i) {
      const int rows = panels[i].rows;
      const float* sums = has_min(format) ? panels[i].sums + k0 / kGroup * rows : nullptr;
      multiply_rows<t.unit, !is_float(format), has_min(format)>(rows, codes, decoded.scales, decoded.mins,
                                                                panels[i].x + k0 * rows, sums, count,
                                                                totals + i * kPanelRows * kTileColumns);
    }
  }
  for (int i = 0; i < panel_count; ++i) {
    write_rows(p, totals + i * kPanelRows * kTileColumns, panels[i].rows, panels[i].first_row, tile_index);
  }
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
