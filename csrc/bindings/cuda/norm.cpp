#include "kernels/norm.h"

#include "bindings/checks/norm.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"
#include "bindings/row_args.h"

namespace py = pybind11;

namespace inferx {
namespace {

void rms_norm(const TensorRef& out, const TensorRef& x, const TensorRef& weight, double eps) {
  constexpr const char* op = "rms_norm";
  DeviceCall call(op, "x", x);
  check_rms_norm(op, out, x, weight, eps);
  call.reads("x", x).reads("weight", weight).writes("out", out);

  const cuda::RmsNormParams params{out.data,   x.data,       weight.data,
                                   x.dtype,    weight.dtype, rows_of(out),
                                   rows_of(x), x.size(-1),   static_cast<float>(eps)};
  call.run([&](void* stream) { return cuda::launch_rms_norm(params, stream); });
}

void fused_add_rms_norm(const TensorRef& x, const TensorRef& residual, const TensorRef& weight, double eps) {
  constexpr const char* op = "fused_add_rms_norm";
  DeviceCall call(op, "x", x);
  check_fused_add_rms_norm(op, x, residual, weight, eps);
  call.writes("x", x).writes("residual", residual).reads("weight", weight);

  const cuda::FusedAddRmsNormParams params{
      x.data,     residual.data,          weight.data, x.dtype, weight.dtype, rows_of(x), rows_of(residual),
      x.size(-1), static_cast<float>(eps)};
  call.run([&](void* stream) { return cuda::launch_fused_add_rms_norm(params, stream); });
}

}  // namespace

void bind_cuda_norm(py::module_& m) {
  m.def("rms_norm", &rms_norm, py::arg("out"), py::arg("x"), py::arg("weight"), py::arg("eps"));
  m.def("fused_add_rms_norm", &fused_add_rms_norm, py::arg("x"), py::arg("residual"), py::arg("weight"),
        py::arg("eps"));
}

}  // namespace inferx
