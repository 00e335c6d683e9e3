// The copies of isa/int8/*.cpp: quantised rows, and their products with packed weights.
#pragma once
#include <cstdint>

#include "cpu/isa.h"
#include "cpu/packed_weight.h"
#include "cpu/quantized_rows.h"

namespace inferx::cpu {

constexpr int kMaxInt8PanelRows = 12;  // on any instruction set
constexpr int kInt8RowsPerCall = 120;  // most rows in a call of `multiply`
// The groups of one panel of rows, from some group on: see QuantizedRows.
struct QuantizedPanel {
  int8_t* codes;
  float* scales;
  int16_t* sums;
  float* offsets;
};

inline QuantizedPanel panel_of(const QuantizedRows& q, int64_t panel, int64_t group = 0) {
  const int64_t start = q.start(panel), rows = q.start(panel + 1) - start;
  const int64_t at = start * q.groups() + group * rows;
  return {q.codes + start * q.k + group * kGroup * rows, q.scales + at, q.sums + 2 * at, q.offsets + at};
}

struct Int8Kernels {
  int panel_rows;  // most rows in a panel
  // x: where each of the panel's rows is, `groups` groups of each.
  void (*quantize)(const float* const* x, int rows, int64_t groups, const QuantizedPanel& out);
  // totals[row][kTileColumns] = rows of panels [first, last) times one tile.  next: what will be read after
  // it, about as much, or null.
  void (*multiply)(const QuantizedRows& x, int64_t first, int64_t last, const PackedWeight& weight,
                   int64_t tile, const uint8_t* next, float* totals);
  // out[r][c] = totals[r][c] + bias[c] for `columns` columns of a tile; bias may be null.
  void (*write)(const float* totals, int64_t rows, int64_t columns, const float* bias, float* out,
                int64_t out_stride);
};
INFERX_DECLARE_INT8_KERNELS(Int8Kernels, int8_kernels)

}  // namespace inferx::cpu
