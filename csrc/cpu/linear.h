// y = x W^T + b with a packed weight.
//
// Arithmetic, the same for every element of every call on one instruction set.  K is cut into units (32, or
// 16 for Q6_K).  Within a unit p = sum of x[k] * code[k] in order of k by fused multiply-adds; then, unit
// after unit, total += p * scale and, where the format has minima, total += (sum of the unit's x) * min. Last
// the bias. So a row's result depends neither on the other rows nor on how the work was cut among threads.
#pragma once
#include <cstdint>

#include "cpu/isa.h"
#include "cpu/packed_weight.h"

namespace inferx::cpu {

constexpr int kDirectRows = 4;  // up to this many rows weights are decoded in registers, not through a buffer

struct LinearParams {
  const float* x;  // [m, weight.k], rows x_stride elements apart
  int64_t m, x_stride;
  PackedWeight weight;
  const float* bias;  // [weight.n] or null
  float* out;         // [m, weight.n], rows out_stride elements apart
  int64_t out_stride;
};

void linear(const LinearParams& params);

// ---- Between the driver and the copies of isa/linear.cpp --------------------------------------------

// Rows packed for the tiled kernel: [k][rows], and the sums of x over each unit, [unit][rows].
struct Panel {
  const float* x;
  const float* sums;
  int64_t first_row;
  int rows;
};

struct LinearKernels {
  int panel_rows;       // most rows in a panel
  int panels_per_call;  // most panels in a call of `tiled`
  // Sums over each full group of 32 of one row.
  void (*group_sums)(const float* x, int64_t groups, float* sums, int64_t sums_stride);
  void (*pack_panel)(const float* x, int64_t x_stride, int rows, int64_t k, float* packed);
  // Rows [0, m), m <= kDirectRows, and the given tiles.  sums: [m][groups], only read for formats with
  // minima.
  void (*direct)(const LinearParams& params, const float* sums, int64_t first_tile, int64_t last_tile);
  void (*tiled)(const LinearParams& params, const Panel* panels, int panel_count, int64_t tile);
};

INFERX_DECLARE_KERNELS(LinearKernels, linear_kernels)

}  // namespace inferx::cpu
