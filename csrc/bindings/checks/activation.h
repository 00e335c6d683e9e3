// The checks of the gated activations, the same on every device.
#pragma once
#include "bindings/check.h"

namespace inferx {

// Returns d, half of x's last dimension.
inline int64_t check_activate_and_mul(const char* op, const TensorRef& out, const TensorRef& x) {
  Arg arg(op, "x", x);
  arg.dtype({DType::f32, DType::f16, DType::bf16}).min_ndim(1).last_dim_contiguous();
  if (x.size(-1) % 2 != 0) arg.expected("an even last dimension (gate and up halves)", shape_string(x));
  const int64_t d = x.size(-1) / 2;

  Arg out_arg(op, "out", out);
  out_arg.same_dtype("x", x).same_device("x", x).last_dim_contiguous().not_self_overlapping();
  bool agrees = out.ndim == x.ndim && out.size(-1) == d;
  for (int i = 0; agrees && i < x.ndim - 1; ++i) agrees = out.shape[i] == x.shape[i];
  if (!agrees)
    out_arg.expected("x's shape " + shape_string(x) + " with half the last dimension", shape_string(out));
  check_disjoint(op, "out", out, "x", x);
  return d;
}

}  // namespace inferx
