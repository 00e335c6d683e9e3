// RMS norm on the device.  See csrc/cpu/norm.h for the same ops on the CPU.
#pragma once
#include "dtype.h"
#include "kernels/launch.h"
#include "rows.h"

namespace inferx::cuda {

// out, x: rows of `hidden` contiguous elements of `dtype`; weight: [hidden], of `weight_dtype`.
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

}  // namespace inferx::cuda
