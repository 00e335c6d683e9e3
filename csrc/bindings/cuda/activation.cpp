#include "kernels/activation.h"

#include "bindings/checks/activation.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"
#include "bindings/row_args.h"

namespace py = pybind11;

namespace inferx {

void bind_cuda_activation(py::module_& m) {
  const auto def = [&m](const char* op, cuda::Activation activation) {
    m.def(
        op,
        [op, activation](const TensorRef& out, const TensorRef& x) {
          DeviceCall call(op, "x", x);
          const int64_t d = check_activate_and_mul(op, out, x);
          call.reads("x", x).writes("out", out);
          const cuda::ActivateAndMulParams params{activation,   x.dtype,    out.data, x.data,
                                                  rows_of(out), rows_of(x), d};
          call.run([&](void* stream) { return cuda::launch_activate_and_mul(params, stream); });
        },
        py::arg("out"), py::arg("x"));
  };
  def("silu_and_mul", cuda::Activation::silu);
  def("gelu_and_mul", cuda::Activation::gelu);
  def("gelu_tanh_and_mul", cuda::Activation::gelu_tanh);
}

}  // namespace inferx
