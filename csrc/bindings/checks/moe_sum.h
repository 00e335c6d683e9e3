// The checks of moe_sum, the same on every device.
#pragma once
#include "bindings/check.h"

namespace inferx {

inline void check_moe_sum(const char* op, const TensorRef& out, const TensorRef& x) {
  Sym tokens{"T"}, top_k{"k"}, hidden{"H"};
  Arg(op, "input", x).dtype({DType::f32, DType::f16, DType::bf16}).shape({tokens, top_k, hidden});
  Arg(op, "input", x).last_dim_contiguous();
  Arg(op, "out", out).same_dtype("input", x).shape({tokens, hidden}).last_dim_contiguous();
  Arg(op, "out", out).not_self_overlapping().same_device("input", x);
  check_disjoint(op, "out", out, "input", x);
}

}  // namespace inferx
