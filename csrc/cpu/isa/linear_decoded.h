// Weights decoded into a buffer in L1, for many rows and codes that take long to decode.
#pragma once
#include "cpu/isa/linear_codes.h"
#include "cpu/isa/linear_slice.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

constexpr int kStretch = 128;  // k in the buffer: 16 KB of codes

// One tile's codes [k][32] and, per unit, scales and minima [unit][32].
struct Decoded {
  alignas(64) float codes[kStretch * kTileColumns];
  alignas(64) float scales[kStretch / 16 * kTileColumns];
  alignas(64) float mins[kStretch / 32 * kTileColumns];
};

// k0 .. k0 + count - 1 of a tile; both are multiples of a group.
template <WeightFormat format>
INFERX_INLINE void decode(const uint8_t* tile, int64_t k0, int64_t count, Decoded& out) {
  using Source = PackedSlice<format>;
  for (int column = 0; column < kTileColumns; column += kLanes) {
    const Source source = {tile, column, false};
    for (int64_t u = 0; u < count / Source::unit; ++u) {
      float* codes = out.codes + u * Source::unit * kTileColumns + column;
      for (int c = 0; c < Source::unit / 8; ++c) {
        const auto chunk = source.chunk(k0 / Source::unit + u, c, 0);
        unroll<8>([&](auto j) __attribute__((always_inline)) {
          store(codes + (8 * c + j.v) * kTileColumns, chunk.template get<j.v>());
        });
      }
      const auto s = source.scales(k0 / Source::unit + u, 0);
      store(out.scales + u * kTileColumns + column, s.scale);
      if constexpr (Source::minima) store(out.mins + u * kTileColumns + column, s.min);
    }
  }
}

struct DecodedScales {
  F scale, min;
};

// As Slice wants it.
template <int unit_, bool minima_>
struct DecodedSlice {
  static constexpr int unit = unit_;
  static constexpr bool scaled = true, minima = minima_;

  const Decoded& decoded;
  int column;

  INFERX_INLINE FloatChunk<WeightFormat::f32> chunk(int64_t u, int c, int v) const {
    return {reinterpret_cast<const uint8_t*>(decoded.codes + (u * unit + c * 8) * kTileColumns + column +
                                             v * kLanes)};
  }
  INFERX_INLINE DecodedScales scales(int64_t u, int v) const {
    const int64_t at = u * kTileColumns + column + v * kLanes;
    DecodedScales s;
    s.scale = load<F>(decoded.scales + at);
    if constexpr (minima) s.min = load<F>(decoded.mins + at);
    return s;
  }
  INFERX_INLINE void prefetch(int64_t, int) const {}
};

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
