// Gated activations: out = f(x[..., :d]) * x[..., d:].
#pragma once
#include "cpu/isa.h"
#include "dtype.h"
#include "rows.h"

namespace inferx::cpu {

enum class Activation {
  silu,       // z sigmoid(z)
  gelu,       // z Phi(z), by erf
  gelu_tanh,  // its approximation z sigmoid(2 sqrt(2/pi) (z + 0.044715 z^3))
  swigluoai,  // gpt-oss: z sigmoid(alpha z) with z at most limit, times 1 + up with up within +-limit
};

struct GatedActivation {
  Activation f;
  float alpha = 0, limit = 0;  // of swigluoai
};

struct ActivationKernels {
  // One row: out[i] = f(gate[i]) * up[i] for i < d, all of `dtype`, computed in float32, rounded once.
  // `out` may be `gate`.
  void (*activate_and_mul_row)(const GatedActivation& f, DType dtype, void* out, const void* gate,
                               const void* up, int64_t d);
};
INFERX_DECLARE_KERNELS(ActivationKernels, activation_kernels)

struct ActivateAndMulParams {
  GatedActivation activation;
  DType dtype;
  void* out;
  const void* x;  // rows of 2 d
  Rows out_rows, x_rows;
  int64_t d;
};
void activate_and_mul(const ActivateAndMulParams& params);

}  // namespace inferx::cpu
