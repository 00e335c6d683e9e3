#pragma once
#include <algorithm>

#include "cpu/isa/linear_simd.h"
#include "cpu/linear.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// Adds the bias to `totals` [rows][kTileColumns] of one tile and writes the columns that the matrix has.
INFERX_INLINE void write_rows(const LinearParams& p, const float* totals, int rows, int64_t first_row,
                              int64_t tile) {
  const int64_t first = tile * kTileColumns;
  const int columns = p.weight.n - first < kTileColumns ? static_cast<int>(p.weight.n - first) : kTileColumns;
  for (int r = 0; r < rows; ++r) {
    const float* from = totals + r * kTileColumns;
    float* to = p.out + (first_row + r) * p.out_stride + first;
    if (columns == kTileColumns) {
      for (int c = 0; c < kTileColumns; c += kLanes) {
        const F value = load<F>(from + c);
        store(to + c, p.bias ? value + load<F>(p.bias + first + c) : value);
      }
    } else {
      for (int c = 0; c < columns; ++c) to[c] = p.bias ? from[c] + p.bias[first + c] : from[c];
    }
  }
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
