// From sums to results: bias, activation, the pair's weight.
#pragma once
#include "kernels/dtype_dispatch.h"
#include "kernels/gate_functions.cuh"
#include "kernels/moe_gemm/params.h"

namespace inferx::cuda::moe_gemm {

// gpt-oss's activation.  A NaN passes through the bounds.
SIMT_DEV float swigluoai(float gate, float up, float alpha, float limit) {
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : up < -limit ? -limit : up;
  return (up + 1.0f) * (gate / (1.0f + expf(-alpha * gate)));
}

SIMT_DEV float activate(const MoeGemmParams& p, float gate, float up) {
  switch (p.activation) {
    case MoeActivation::silu:
      return Silu::apply(gate) * up;
    case MoeActivation::gelu:
      return Gelu::apply(gate) * up;
    case MoeActivation::gelu_tanh:
      return GeluTanh::apply(gate) * up;
    default:
      return swigluoai(gate, up, p.swiglu_alpha, p.swiglu_limit);
  }
}

template <class T>
SIMT_DEV float bias_at(const MoeGemmParams& p, int64_t at) {
  if (p.bias == nullptr) return 0.0f;
  return p.bias_f32 ? static_cast<const float*>(p.bias)[at] : to_float(static_cast<const T*>(p.bias)[at]);
}

// The result of a column whose sum is `sum`; gated: the gate's, and `up` that of the up row.
template <class T, bool kGated>
SIMT_DEV float finish(const MoeGemmParams& p, int expert, int64_t column, float sum, float up, float scale) {
  const int64_t bias = expert * p.bias_stride_expert + column;
  sum += bias_at<T>(p, bias);
  if constexpr (kGated) sum = activate(p, sum, up + bias_at<T>(p, bias + p.columns));
  return p.topk_weights != nullptr ? sum * scale : sum;
}

}  // namespace inferx::cuda::moe_gemm
