// The checks of rms_norm and fused_add_rms_norm, the same on every device.
#pragma once
#include "bindings/check.h"

namespace inferx {

inline void check_norm_weight(const char* op, const TensorRef& weight, const TensorRef& x, Sym& hidden) {
  Arg arg(op, "weight", weight);
  arg.shape({hidden}).contiguous().same_device("x", x);
  if (weight.dtype != DType::f32) arg.same_dtype("x", x);
}

inline void check_eps(const char* op, double eps) {
  if (!(eps >= 0)) fail_expected(op, "eps", "a number >= 0", std::to_string(eps));
}

inline void check_rms_norm(const char* op, const TensorRef& out, const TensorRef& x, const TensorRef& weight,
                           double eps) {
  Sym hidden{"H"};
  Arg(op, "x", x).dtype({DType::f32, DType::f16, DType::bf16}).last_dim(hidden).last_dim_contiguous();
  check_norm_weight(op, weight, x, hidden);
  check_eps(op, eps);
  Arg(op, "out", out).same_dtype("x", x).same_shape("x", x).last_dim_contiguous().not_self_overlapping();
  Arg(op, "out", out).same_device("x", x);
  check_same_or_disjoint(op, "out", out, "x", x);
  check_disjoint(op, "out", out, "weight", weight);
}

inline void check_fused_add_rms_norm(const char* op, const TensorRef& x, const TensorRef& residual,
                                     const TensorRef& weight, double eps) {
  Sym hidden{"H"};
  Arg(op, "x", x).dtype({DType::f32, DType::f16, DType::bf16}).last_dim(hidden).last_dim_contiguous();
  Arg(op, "x", x).not_self_overlapping();
  Arg(op, "residual", residual).same_dtype("x", x).same_shape("x", x).last_dim_contiguous();
  Arg(op, "residual", residual).not_self_overlapping().same_device("x", x);
  check_norm_weight(op, weight, x, hidden);
  check_eps(op, eps);
  check_disjoint(op, "x", x, "residual", residual);
  check_disjoint(op, "x", x, "weight", weight);
  check_disjoint(op, "residual", residual, "weight", weight);
}

}  // namespace inferx
