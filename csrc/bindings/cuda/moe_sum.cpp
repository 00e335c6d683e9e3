#include "kernels/moe_sum.h"

#include "bindings/checks/moe_sum.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {
namespace {

void moe_sum(const TensorRef& out, const TensorRef& x) {
  constexpr const char* op = "moe_sum";
  DeviceCall call(op, "input", x);
  check_moe_sum(op, out, x);
  call.reads("input", x).writes("out", out);

  const cuda::MoeSumParams params{out.data,  x.data,        x.dtype,     x.size(0),  x.size(1),
                                  x.size(2), out.stride(0), x.stride(0), x.stride(1)};
  call.run([&](void* stream) { return cuda::launch_moe_sum(params, stream); });
}

}  // namespace

void bind_cuda_moe_sum(py::module_& m) { m.def("moe_sum", &moe_sum, py::arg("out"), py::arg("input")); }

}  // namespace inferx
