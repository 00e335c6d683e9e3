#include "cpu/activation.h"

#include "bindings/bindings.h"
#include "bindings/check.h"
#include "bindings/row_args.h"

namespace py = pybind11;

namespace inferx {
namespace {

void activate_and_mul(const char* op, cpu::Activation activation, const TensorRef& out, const TensorRef& x) {
  Arg arg(op, "x", x);
  arg.dtype({DType::f32, DType::f16, DType::bf16}).min_ndim(1).last_dim_contiguous().on_cpu();
  if (x.size(-1) % 2 != 0) arg.expected("an even last dimension (gate and up halves)", shape_string(x));
  const int64_t d = x.size(-1) / 2;

  Arg out_arg(op, "out", out);
  out_arg.same_dtype("x", x).same_device("x", x).last_dim_contiguous().not_self_overlapping();
  bool agrees = out.ndim == x.ndim && out.size(-1) == d;
  for (int i = 0; agrees && i < x.ndim - 1; ++i) agrees = out.shape[i] == x.shape[i];
  if (!agrees)
    out_arg.expected("x's shape " + shape_string(x) + " with half the last dimension", shape_string(out));
  check_disjoint(op, "out", out, "x", x);
  if (out.numel() == 0) return;

  const cpu::ActivateAndMulParams params{activation, x.dtype, out.data, x.data, rows_of(out), rows_of(x), d};
  py::gil_scoped_release nogil;
  cpu::activate_and_mul(params);
}

}  // namespace

void bind_activation(py::module_& m) {
  const auto def = [&m](const char* name, cpu::Activation activation) {
    m.def(
        name,
        [name, activation](const TensorRef& out, const TensorRef& x) {
          activate_and_mul(name, activation, out, x);
        },
        py::arg("out"), py::arg("x"));
  };
  def("silu_and_mul", cpu::Activation::silu);
  def("gelu_and_mul", cpu::Activation::gelu);
  def("gelu_tanh_and_mul", cpu::Activation::gelu_tanh);
}

}  // namespace inferx
