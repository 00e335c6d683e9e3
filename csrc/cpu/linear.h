// y = x W^T + b with a packed weight.
//
// Arithmetic, the same for every element of every call on one instruction set.  K is cut into units
// (FormatTraits::unit).  Within a unit p = sum of x[k] * code[k] in order of k by fused multiply-adds; then,
// unit after unit, total += p * scale and, where the format has minima, total += (sum of the unit's x) * min.
// Last the bias.  So a row's result depends neither on the other rows nor on how the work was cut among
// threads.
#pragma once
#include <cstdint>

#include "cpu/isa.h"
#include "cpu/packed_weight.h"

namespace inferx::cpu {

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

// `rows` rows of x from `first_row` on, cut into `count` panels of nearly equal size.  A panel of R rows from
// row `start` on is stored as x[k][R] at x + start * K, and, for formats with minima, the sums over each
// group of 32 as sums[group][R] at sums + start * groups.
struct Panels {
  const float* x;
  const float* sums;
  int64_t first_row, rows, count;
  int64_t start(int64_t panel) const { return rows * panel / count; }
};

constexpr int kRowsPerCall = 120;  // most rows in a call of `multiply`
constexpr int kMaxPanelRows = 8;   // on any instruction set

// A second thread is worth its start (some microseconds) for no less than this; in multiply-adds of four
// rows, since up to there the weights' way from memory decides.
constexpr int64_t kWorkPerThread = 1 << 19;

struct LinearKernels {
  int panel_rows;       // most rows in a panel
  int panels_per_call;  // most panels in a call of `multiply`
  // x: where each of the panel's rows is.
  void (*pack_panel)(const float* const* x, int rows, int64_t k, float* packed);
  void (*sum_groups)(const float* const* x, int rows, int64_t groups, float* sums);
  // Panels [first, last) times one tile.
  void (*multiply)(const LinearParams& params, const Panels& panels, int64_t first, int64_t last,
                   int64_t tile);
};

INFERX_DECLARE_KERNELS(LinearKernels, linear_kernels)

}  // namespace inferx::cpu
