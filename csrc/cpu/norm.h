// RMS norm, plain and fused with the residual's addition.
#pragma once
#include "cpu/isa.h"
#include "dtype.h"
#include "rows.h"

namespace inferx::cpu {

// One row at a time, of n elements.  x, out and residual have `dtype`; the weight has it too or is float32.
struct NormKernels {
  void (*rms_norm_row)(DType dtype, DType weight_dtype, void* out, const void* x, const void* weight,
                       int64_t n, float eps);
  void (*fused_add_rms_norm_row)(DType dtype, DType weight_dtype, void* x, void* residual, const void* weight,
                                 int64_t n, float eps);
};
INFERX_DECLARE_KERNELS(NormKernels, norm_kernels)

struct RmsNormParams {
  void* out;
  const void* x;
  const void* weight;
  DType dtype, weight_dtype;
  Rows out_rows, x_rows;
  int64_t hidden;
  float eps;
};
void rms_norm(const RmsNormParams& params);

struct FusedAddRmsNormParams {
  void* x;
  void* residual;
  const void* weight;
  DType dtype, weight_dtype;
  Rows x_rows, residual_rows;
  int64_t hidden;
  float eps;
};
void fused_add_rms_norm(const FusedAddRmsNormParams& params);

}  // namespace inferx::cpu
