// The inner kernel: a panel of rows times two vectors of columns of one tile.
#pragma once
#include "cpu/isa/linear_simd.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

constexpr int kVectors = 2;
constexpr int kSlice = kVectors * kLanes;

// Rows per panel: as many as the registers hold next to two vectors of weights and one of x.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kPanelRows = 8;  // of 32 registers 16 for the unit's sums, the others mostly for the totals
#else
constexpr int kPanelRows = 6;  // of 16 registers 12 for the unit's sums
#endif

template <int value>
struct Index {
  static constexpr int v = value;
};
// fn(Index<0>{}), ... fn(Index<count - 1>{}).
template <int count, int start = 0, class Fn>
INFERX_INLINE void unroll(const Fn& fn) {
  if constexpr (start < count) {
    fn(Index<start>{});
    unroll<count, start + 1>(fn);
  }
}

// One panel as Panels describes it.
template <int Rows>
struct PanelRows {
  const float* x;
  const float* sums;
  INFERX_INLINE F at(int row, int64_t k) const { return splat(x[k * Rows + row]); }
  INFERX_INLINE F sum(int row, int64_t unit) const { return splat(sums[unit * Rows + row]); }
};

// Weights has: unit, scaled, minima; chunk(unit, c, v).get<j>(), the code of k = 8 c + j of a unit in vector
// v; element(k, v); scales(unit, v).{scale, min}; prefetch(unit, c).
template <class Weights, int Rows>
struct Slice {
  const Weights& weights;
  const PanelRows<Rows>& panel;
  F total[Rows][kVectors];

  INFERX_INLINE void load_totals(const float* from) {
    for (int r = 0; r < Rows; ++r) {
      for (int v = 0; v < kVectors; ++v) total[r][v] = load<F>(from + r * kTileColumns + v * kLanes);
    }
  }
  INFERX_INLINE void store_totals(float* to) const {
    for (int r = 0; r < Rows; ++r) {
      for (int v = 0; v < kVectors; ++v) store(to + r * kTileColumns + v * kLanes, total[r][v]);
    }
  }

  // Adds k = 0 .. count - 1.
  INFERX_INLINE void run(int64_t count) {
    // With few rows several units are summed side by side: independent chains of multiply-adds hide their
    // latency. Floats have long units, which would be streams far apart, and wait for memory anyway.
    constexpr int side_by_side = !Weights::scaled || Rows > 4 ? 1 : Rows == 1 ? 4 : 2;
    const int64_t units = count / Weights::unit;
    int64_t unit = 0;
    for (; unit + side_by_side <= units; unit += side_by_side) add_units<side_by_side>(unit);
    if constexpr (side_by_side > 1) {
      for (; unit < units; ++unit) add_units<1>(unit);
    }
    if constexpr (!Weights::scaled) {
      if (units * Weights::unit < count) add_rest(units * Weights::unit, count);
    }
  }

 private:
  template <int Units>
  INFERX_INLINE void add_units(int64_t unit) {
    F p[Units][Rows][kVectors] = {};
    for (int c = 0; c < Weights::unit / 8; ++c) {
#pragma GCC unroll 4
      for (int u = 0; u < Units; ++u) {
        weights.prefetch(unit + u, c);
        const auto chunk0 = weights.chunk(unit + u, c, 0), chunk1 = weights.chunk(unit + u, c, 1);
        const int64_t k = (unit + u) * Weights::unit + c * 8;
        unroll<8>([&](auto j) __attribute__((always_inline)) {
          multiply_add(p[u], k + j.v, chunk0.template get<j.v>(), chunk1.template get<j.v>());
        });
      }
    }
    for (int u = 0; u < Units; ++u) add_to_total(p[u], unit + u);
  }

  // Floats only: what is left of K after whole units.
  INFERX_INLINE void add_rest(int64_t k, int64_t end) {
    const int64_t unit = k / Weights::unit;
    F p[Rows][kVectors] = {};
    for (; k < end; ++k) multiply_add(p, k, weights.element(k, 0), weights.element(k, 1));
    add_to_total(p, unit);
  }

  INFERX_INLINE void multiply_add(F (&p)[Rows][kVectors], int64_t k, F w0, F w1) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const F x = panel.at(r, k);
      p[r][0] = fma(x, w0, p[r][0]);
      p[r][1] = fma(x, w1, p[r][1]);
    }
  }

  INFERX_INLINE void add_to_total(const F (&p)[Rows][kVectors], int64_t unit) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const auto s = weights.scales(unit, v);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        total[r][v] = Weights::scaled ? fma(p[r][v], s.scale, total[r][v]) : total[r][v] + p[r][v];
        if constexpr (Weights::minima) total[r][v] = fma(panel.sum(r, unit), s.min, total[r][v]);
      }
    }
  }
};

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
