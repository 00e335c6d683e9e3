// Gated activations on the device: out = f(x[..., :d]) * x[..., d:].
#pragma once
#include "dtype.h"
#include "kernels/launch.h"
#include "rows.h"

namespace inferx::cuda {

enum class Activation { silu, gelu, gelu_tanh };

// x: rows of 2 d contiguous elements of `dtype`; out: rows of d.
struct ActivateAndMulParams {
  Activation activation;
  DType dtype;
  void* out;
  const void* x;
  Rows out_rows, x_rows;
  int64_t d;
};
Error launch_activate_and_mul(const ActivateAndMulParams& params, void* stream);

}  // namespace inferx::cuda
