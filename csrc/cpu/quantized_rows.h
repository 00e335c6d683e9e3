// Rows of activations as 8-bit integers, in the layout that the integer kernels of linear read.
//
// Every group of 32 elements (kGroup) has one scale: x[k] = scale * code[k], code = round(x / scale) to
// nearest, ties to even, scale = max |x| / 127.  A group depends on its own elements only, so a row's bits do
// not depend on the other rows.  (The scheme is Q8_0's of GGML with a float32 scale.)
//
// Rows lie in panels of nearly equal size, as Panels of linear.h.  A panel of R rows holds
//     codes   int8  [k / 4][R][4]   four k's of a row are one 32-bit word, which a kernel broadcasts
//     scales  float [groups][R]
//     sums    int16 [groups][R][2]  of the codes, by halves of 16: for the weight's zero point
//     offsets float [groups][R]     scale * both sums: for the weight's minimum
// Within eight k's the order is 0 2 4 6 1 3 5 7: then the low and the high nibbles of a packed word are four
// codes each without being taken apart.
#pragma once
#include <cstdint>

#include "cpu/packed_weight.h"

namespace inferx::cpu {

// Does not own its memory, of nbytes(rows, k) bytes, 64-byte aligned.  k is a multiple of kGroup.
struct QuantizedRows {
  int64_t rows = 0, k = 0, panels = 0;
  int8_t* codes = nullptr;
  float* scales = nullptr;
  int16_t* sums = nullptr;
  float* offsets = nullptr;

  QuantizedRows() = default;
  QuantizedRows(void* memory, int64_t rows, int64_t k);
  static int64_t nbytes(int64_t rows, int64_t k) { return (rows * (k + k / kGroup * 12) + 63) / 64 * 64; }

  int64_t groups() const { return k / kGroup; }
  int64_t start(int64_t panel) const { return rows * panel / panels; }
};

// out = x: [out.rows, out.k], rows x_stride elements apart.
void quantize_rows(const float* x, int64_t x_stride, const QuantizedRows& out);

// Where the result of a norm goes.
struct NormQuantizeParams {
  float* x;         // [rows, k]: added to the residual; becomes the norm before it is quantised
  float* residual;  // [rows, k]: residual += x first; null: the norm is of x itself
  int64_t x_stride, residual_stride;
  const float* weight;  // [k]
  float eps;
  QuantizedRows out;
};

// fused_add_rms_norm (or rms_norm) and quantize_rows in one pass; the same bits as one after the other.
void rms_norm_quantize(const NormQuantizeParams& params);

}  // namespace inferx::cpu
