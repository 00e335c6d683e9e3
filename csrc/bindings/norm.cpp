#include "cpu/norm.h"

#include "bindings/bindings.h"
#include "bindings/checks/norm.h"
#include "bindings/row_args.h"

namespace py = pybind11;

namespace inferx {
namespace {

void rms_norm(const TensorRef& out, const TensorRef& x, const TensorRef& weight, double eps) {
  constexpr const char* op = "rms_norm";
  Arg(op, "x", x).on_cpu();
  check_rms_norm(op, out, x, weight, eps);
  if (x.numel() == 0) return;

  const cpu::RmsNormParams params{out.data,   x.data,       weight.data,
                                  x.dtype,    weight.dtype, rows_of(out),
                                  rows_of(x), x.size(-1),   static_cast<float>(eps)};
  py::gil_scoped_release nogil;
  cpu::rms_norm(params);
}

void fused_add_rms_norm(const TensorRef& x, const TensorRef& residual, const TensorRef& weight, double eps) {
  constexpr const char* op = "fused_add_rms_norm";
  Arg(op, "x", x).on_cpu();
  check_fused_add_rms_norm(op, x, residual, weight, eps);
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
