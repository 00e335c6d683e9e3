#include "cpu/moe_routing.h"

#include "bindings/bindings.h"
#include "bindings/checks/moe_routing.h"

namespace py = pybind11;

namespace inferx {

void bind_moe_routing(py::module_& m) {
  define_routing_ops(m, [](const char* op, const RoutingTensors& tensors, const RoutingOptions& options) {
    Arg(op, "gating_output", tensors.logits).on_cpu();
    const moe::RoutingParams params = check_routing(op, tensors, options);
    py::gil_scoped_release nogil;
    cpu::moe_routing(params);
  });
}

}  // namespace inferx
