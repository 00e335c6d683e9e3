#include "kernels/moe_routing.h"

#include "bindings/checks/moe_routing.h"
#include "bindings/cuda/device_call.h"
#include "bindings/cuda/families.h"

namespace py = pybind11;

namespace inferx {

void bind_cuda_moe_routing(py::module_& m) {
  define_routing_ops(m, [](const char* op, const RoutingTensors& t, const RoutingOptions& options) {
    DeviceCall call(op, "gating_output", t.logits);
    const moe::RoutingParams params = check_routing(op, t, options);
    call.reads("gating_output", t.logits).writes("topk_weights", t.weights).writes("topk_ids", t.ids);
    if (t.has_bias) call.reads("e_score_correction_bias", t.bias);
    call.run([&](void* stream) { return cuda::launch_moe_routing(params, stream); });
  });
}

}  // namespace inferx
