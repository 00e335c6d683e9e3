#include "cpu/norm.h"

#include "bindings/bindings.h"
#include "bindings/check.h"
#include "bindings/row_args.h"

namespace py = pybind11;

namespace inferx {
namespace {

void check_weight(const char* op, const TensorRef& weight, const TensorRef& x, Sym& hidden) {
  Arg arg(op, "weight", weight);
  arg.shape({hidden}).contiguous().same_device("x", x);
  if (weight.dtype != DType::f32) arg.same_dtype("x", x);
}

void check_eps(const char* op, double eps) {
  if (!(eps >= 0)) fail_expected(op, "eps", "a number >= 0", std::to_string(eps));
}

void rms_norm(const TensorRef& out, const TensorRef& x, const TensorRef& weight, double eps) {
  constexpr const char* op = "rms_norm";
  Sym hidden{"H"};
  Arg(op, "x", x)
      .dtype({DType::f32, DType::f16, DType::bf16})
      .last_dim(hidden)
      .last_dim_contiguous()
      .on_cpu();
  check_weight(op, weight, x, hidden);
  check_eps(op, eps);
  Arg(op, "out", out).same_dtype("x", x).same_shape("x", x).last_dim_contiguous().not_self_overlapping();
  Arg(op, "out", out).same_device("x", x);
  check_same_or_disjoint(op, "out", out, "x", x);
  check_disjoint(op, "out", out, "weight", weight);
  if (x.numel() == 0) return;

  const cpu::RmsNormParams params{out.data,   x.data,       weight.data,
                                  x.dtype,    weight.dtype, rows_of(out),
                                  rows_of(x), x.size(-1),   static_cast<float>(eps)};
  py::gil_scoped_release nogil;
  cpu::rms_norm(params);
}

void fused_add_rms_norm(const TensorRef& x, const TensorRef& residual, const TensorRef& weight, double eps) {
  constexpr const char* op = "fused_add_rms_norm";
  Sym hidden{"H"};
  Arg(op, "x", x)
      .dtype({DType::f32, DType::f16, DType::bf16})
      .last_dim(hidden)
      .last_dim_contiguous()
      .on_cpu();
  Arg(op, "x", x).not_self_overlapping();
  Arg(op, "residual", residual).same_dtype("x", x).same_shape("x", x).last_dim_contiguous();
  Arg(op, "residual", residual).not_self_overlapping().same_device("x", x);
  check_weight(op, weight, x, hidden);
  check_eps(op, eps);
  check_disjoint(op, "x", x, "residual", residual);
  check_disjoint(op, "x", x, "weight", weight);
  check_disjoint(op, "residual", residual, "weight", weight);
  if (x.numel() == 0) return;

  const cpu::FusedAddRmsNormParams params{
      x.data,     residual.data,          weight.data, x.dtype, weight.dtype, rows_of(x), rows_of(residual),
      x.size(-1), static_cast<float>(eps)};
  py::gil_scoped_release nogil;
  cpu::fused_add_rms_norm(params);
}

}  // namespace

void bind_norm(py::module_& m) {
  m.def("rms_norm", &rms_norm, py::arg("out"), py::arg("x"), py::arg("weight"), py::arg("eps"));
  m.def("fused_add_rms_norm", &fused_add_rms_norm, py::arg("x"), py::arg("residual"), py::arg("weight"),
        py::arg("eps"));
}

}  // namespace inferx
