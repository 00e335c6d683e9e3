// RMS norm on the device.  csrc/cpu/norm.h has the same ops for the CPU.
#pragma once
#include "dtype.h"
#include "kernels/launch.h"
#include "rows.h"

namespace inferx::cuda {

// out = x / rms(x) * weight.  out, x: rows of `hidden` contiguous elements of `dtype`; weight: [hidden], of
// `weight_dtype` (dtype or f32).  out may be x.
struct RmsNormParams {
  void* out;
  const void* x;
  const void* weight;
  DType dtype, weight_dtype;
  Rows out_rows, x_rows;
  int64_t hidden;
  float eps;
};
Error launch_rms_norm(const RmsNormParams& params, void* stream);

// residual += x, rounded to dtype; x = residual / rms(residual) * weight.
struct FusedAddRmsNormParams {
  void* x;
  void* residual;
  const void* weight;
  DType dtype, weight_dtype;
  Rows x_rows, residual_rows;
  int64_t hidden;
  float eps;
};
Error launch_fused_add_rms_norm(const FusedAddRmsNormParams& params, void* stream);

}  // namespace inferx::cuda
