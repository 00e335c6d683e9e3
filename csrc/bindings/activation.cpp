#include "cpu/activation.h"

#include "bindings/bindings.h"
#include "bindings/checks/activation.h"
#include "bindings/row_args.h"

namespace py = pybind11;

namespace inferx {
namespace {

void activate_and_mul(const char* op, cpu::Activation activation, const TensorRef& out, const TensorRef& x) {
  Arg(op, "x", x).on_cpu();
  const int64_t d = check_activate_and_mul(op, out, x);
  if (out.numel() == 0) return;

  const cpu::ActivateAndMulParams params{{activation}, x.dtype,    out.data, x.data,
                                         rows_of(out), rows_of(x), d};
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
