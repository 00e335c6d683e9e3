#include "kernels/norm.h"

#include "bindings/check.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"
#include "bindings/row_args.h"

namespace py = pybind11;

namespace inferx {
namespace {

void rms_norm(const TensorRef& out, const TensorRef& x, const TensorRef& weight, double eps) {
  constexpr const char* op = "rms_norm";
  Sym hidden{"H"};
  DeviceCall call(op, "x", x);
  call.reads("x", x).reads("weight", weight).writes("out", out);
  Arg(op, "x", x).dtype({DType::f32, DType::f16, DType::bf16}).last_dim(hidden).last_dim_contiguous();
  Arg(op, "weight", weight).shape({hidden}).contiguous();
  if (weight.dtype != DType::f32) Arg(op, "weight", weight).same_dtype("x", x);
  if (!(eps >= 0)) fail_expected(op, "eps", "a number >= 0", std::to_string(eps));
  Arg(op, "out", out).same_dtype("x", x).same_shape("x", x).last_dim_contiguous().not_self_overlapping();
  check_same_or_disjoint(op, "out", out, "x", x);
  check_disjoint(op, "out", out, "weight", weight);
  if (x.numel() == 0) return;

  const cuda::RmsNormParams params{out.data,   x.data,       weight.data,
                                   x.dtype,    weight.dtype, rows_of(out),
                                   rows_of(x), x.size(-1),   static_cast<float>(eps)};
  call.run([&](void* stream) { return cuda::launch_rms_norm(params, stream); });
}

}  // namespace

void bind_cuda_norm(py::module_& m) {
  m.def("rms_norm", &rms_norm, py::arg("out"), py::arg("x"), py::arg("weight"), py::arg("eps"));
}

}  // namespace inferx
