#include "kernels/token_bitmask.h"

#include "bindings/checks/token_bitmask.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {
namespace {

void apply_token_bitmask(const TensorRef& logits, const TensorRef& bitmask, const py::object& rows) {
  constexpr const char* op = "apply_token_bitmask";
  TensorRef selected;
  const bool some = load_optional(op, "rows", rows, selected);
  DeviceCall call(op, "logits", logits);
  const TokenBitmaskParams params = fill_token_bitmask(op, logits, bitmask, some ? &selected : nullptr);
  call.reads("bitmask", bitmask).writes("logits", logits);
  if (some) call.reads("rows", selected);
  call.run([&](void* stream) { return cuda::launch_apply_token_bitmask(params, stream); });
}

}  // namespace

void bind_cuda_token_bitmask(py::module_& m) {
  m.def("apply_token_bitmask", &apply_token_bitmask, py::arg("logits"), py::arg("bitmask"), py::arg("rows"));
}

}  // namespace inferx
