// A panel of quantised rows times some vectors of columns of one tile.
#pragma once
#include "cpu/int8_kernels.h"
#include "cpu/isa/int8/dot.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// Rows of a panel: as many as the registers hold, sums and totals of one vector of columns.
#if defined(__AVX512F__)
constexpr int kInt8PanelRows = 12;
#elif defined(__aarch64__)
constexpr int kInt8PanelRows = 8;
#elif defined(__AVX2__)
constexpr int kInt8PanelRows = 8;  // totals are in memory
#else
constexpr int kInt8PanelRows = 4;
#endif
static_assert(kInt8PanelRows <= kMaxInt8PanelRows);

// With few rows several vectors of columns share what is read of the rows, and their sums are independent.
constexpr int vectors_at_once(int rows) {
  constexpr int all = kTileColumns / kLanes;
  if (rows == 1) return all < 4 ? all : 4;
  return rows <= kInt8PanelRows / 2 ? 2 : 1;
}
// How often a panel goes through the tile.
constexpr int passes(int rows) { return kTileColumns / kLanes / vectors_at_once(rows); }

// Asks for the tile that comes after the one at hand, evenly spread over the work on this one: memory is then
// as busy with many rows as with one.
class NextTile {
 public:
  // tile: null for none.
  NextTile(const uint8_t* tile, int64_t bytes, int64_t steps)
      : line_(tile), rate_(tile ? bytes * kOne / (64 * steps) : 0) {}

  INFERX_INLINE void step() {
    for (due_ += rate_; due_ >= kOne; due_ -= kOne, line_ += 64) __builtin_prefetch(line_);
  }

 private:
  static constexpr int64_t kOne = 1 << 16;
  const uint8_t* line_;
  int64_t rate_, due_ = 0;  // in kOne-th lines
};

template <WeightFormat format, int Rows>
struct Int8Panel {
  static constexpr FormatTraits t = traits_of(format);
  static constexpr int kVecs = vectors_at_once(Rows);
  static constexpr int kUnitsPerBlock = t.block / t.unit, kUnitsPerGroup = kGroup / t.unit;
  static constexpr int kChunks = t.unit / 8;  // of eight k in a unit
  static constexpr int kZero = code_zero(format);
  static constexpr bool kStartsAtZero = kLanes < 16;  // one register less until the end
  static constexpr bool kTotalsInMemory = kLanes < 16 && Rows > 2;

  // totals[row][kTileColumns], of all columns of the tile.
  static INFERX_INLINE void run(const QuantizedPanel& x, const uint8_t* tile, int64_t blocks, NextTile& next,
                                float* totals) {
    for (int column = 0; column < kTileColumns; column += kVecs * kLanes) {
      multiply(x, tile, blocks, column, next, totals + column);
    }
  }

 private:
  static INFERX_INLINE void multiply(const QuantizedPanel& x, const uint8_t* tile, int64_t blocks, int column,
                                     NextTile& shared_next, float* totals) {
    NextTile next = shared_next;  // in registers
    F total[Rows][kVecs] = {};
    if constexpr (kTotalsInMemory) store_totals(total, totals);
    const uint8_t* codes_x = reinterpret_cast<const uint8_t*>(x.codes);
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* block = tile + b * block_bytes(format);
      next.step();
#pragma GCC unroll 1
      for (int u = 0; u < kUnitsPerBlock; ++u) {
        const int64_t unit = b * kUnitsPerBlock + u;
        I sums[Rows][kVecs];
        unit_sums(x, codes_x + unit * t.unit * Rows, block, column, unit, u, sums);
        if constexpr (kTotalsInMemory) {
          add_in_memory(x, block, column, unit, u, sums, totals);
        } else {
          add(x, block, column, unit, u, sums, total);
        }
      }
    }
    if constexpr (!kTotalsInMemory) store_totals(total, totals);
    shared_next = next;
  }

  static INFERX_INLINE void unit_sums(const QuantizedPanel& x, const uint8_t* codes_x, const uint8_t* block,
                                      int column, int64_t unit, int in_block, I (&sums)[Rows][kVecs]) {
    const uint8_t* group =
        block + header_layout(format).codes + in_block / kUnitsPerGroup * group_bytes(format);
    const auto* words = reinterpret_cast<const uint32_t*>(group) + column;
    const int half = in_block % kUnitsPerGroup;  // of the group, where a unit is one
    Sum<t.codes> sum[Rows][kVecs];
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      const I start = kStartsAtZero ? I{} : zero_sum(x, unit, half, r);
      for (int v = 0; v < kVecs; ++v) sum[r][v] = Sum<t.codes>(start);
    }
    unroll<kChunks>([&](auto chunk) __attribute__((always_inline)) {
      constexpr int c = chunk.v;
      CodeWords w[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        // Constant for units of a whole group.
        w[v] = kUnitsPerGroup == 1 ? code_words<t.codes>(words + v * kLanes, c)
               : half == 0         ? code_words<t.codes>(words + v * kLanes, c)
                                   : code_words<t.codes>(words + v * kLanes, kChunks + c);
      }
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        const I even = splat_word(codes_x + (2 * c * Rows + r) * 4);
        const I odd = splat_word(codes_x + ((2 * c + 1) * Rows + r) * 4);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) sum[r][v].add(w[v], even, odd, c, kChunks);
      }
    });
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      const I rest = kStartsAtZero && kZero != 0 ? zero_sum(x, unit, half, r) : I{};
      for (int v = 0; v < kVecs; ++v) sums[r][v] = sum[r][v].value() + rest;
    }
  }

  // - zero * (sum of the unit's codes of x)
  static INFERX_INLINE I zero_sum(const QuantizedPanel& x, int64_t unit, int half, int row) {
    if constexpr (kZero == 0) return I{};
    constexpr uint32_t low = static_cast<uint16_t>(-kZero), high = low << 16;
    const I halves = splat_word(x.sums + 2 * (unit / kUnitsPerGroup * Rows + row));
    const uint32_t factors = kUnitsPerGroup == 1 ? low | high : half == 0 ? low : high;
    return multiply_pairs(halves, I{} + factors);
  }

  static INFERX_INLINE void add(const QuantizedPanel& x, const uint8_t* block, int column, int64_t unit,
                                int in_block, const I (&sums)[Rows][kVecs], F (&total)[Rows][kVecs]) {
    const int64_t at = unit / kUnitsPerGroup * Rows;
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      const UnitScales<format> w(block, in_block, column + v * kLanes);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) total[r][v] = added(total[r][v], sums[r][v], w, x, at + r);
    }
  }

  static INFERX_INLINE void add_in_memory(const QuantizedPanel& x, const uint8_t* block, int column,
                                          int64_t unit, int in_block, const I (&sums)[Rows][kVecs],
                                          float* totals) {
    const int64_t at = unit / kUnitsPerGroup * Rows;
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      const UnitScales<format> w(block, in_block, column + v * kLanes);
#pragma GCC unroll 12
      for (int r = 0; r < Rows; ++r) {
        float* total = totals + r * kTileColumns + v * kLanes;
        store(total, added(load<F>(total), sums[r][v], w, x, at + r));
      }
    }
  }

  // See linear_int8.h.
  static INFERX_INLINE F added(F total, I sum, const UnitScales<format>& w, const QuantizedPanel& x,
                               int64_t at) {
    total = fma(to_float(sum) * w.scale, splat(x.scales[at]), total);
    if constexpr (has_min(format)) total = fma(w.min, splat(x.offsets[at]), total);
    return total;
  }

  static INFERX_INLINE void store_totals(const F (&total)[Rows][kVecs], float* totals) {
    for (int r = 0; r < Rows; ++r) {
      for (int v = 0; v < kVecs; ++v) store(totals + r * kTileColumns + v * kLanes, total[r][v]);
    }
  }
};

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
