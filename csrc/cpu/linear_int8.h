// y = x W^T + b with quantised activations and a packed block-quantised weight: sums of products are exact
// integers within a unit (FormatTraits::unit).
//
// Arithmetic, the same for every element of every call on one instruction set.  Unit after unit,
//     total = fma(float(sum of code_x[k] * (code_w[k] - zero)) * scale_w, scale_x, total)
// and where the format has minima  total = fma(min_w, offset_x, total), with offset_x = scale_x * (sum of the
// unit's code_x).  Last the bias.  So a row depends neither on the other rows nor on how the work was cut.
#pragma once
#include <cstdint>

#include "cpu/activation.h"
#include "cpu/isa.h"
#include "cpu/packed_weight.h"
#include "cpu/quantized_rows.h"

namespace inferx::cpu {

// Whether linear_int8 takes it: all block formats.
constexpr bool has_int8_kernel(WeightFormat format) { return !is_float(format); }

struct LinearInt8Params {
  QuantizedRows x;
  PackedWeight weight;  // [n, x.k]
  const float* bias;    // [n] or null
  float* out;           // [x.rows, n], rows out_stride elements apart
  int64_t out_stride;
};
void linear_int8(const LinearInt8Params& params);

// out = quantised act(gate) * up, with gate = x W[:n/2]^T, up = x W[n/2:]^T: the bits of linear_int8, then
// activate_and_mul, then quantize_rows.  Where n / 2 is no multiple of the tile, the caller takes those.
struct GateUpInt8Params {
  QuantizedRows x;
  PackedWeight weight;  // [2 I, x.k], I a multiple of kTileColumns
  const float* bias;    // [2 I] or null
  GatedActivation activation;
  QuantizedRows out;  // [x.rows, I]
};
void gate_up_int8(const GateUpInt8Params& params);

}  // namespace inferx::cpu
