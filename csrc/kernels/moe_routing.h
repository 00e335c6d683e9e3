// From router logits to experts and weights on the device.  csrc/cpu/moe_routing.h has the same for the CPU.
#pragma once
#include "kernels/launch.h"
#include "moe_routing_params.h"

namespace inferx::cuda {

// topk_softmax, topk_sigmoid and grouped_topk, in one launch.
Error launch_moe_routing(const moe::RoutingParams& params, void* stream);

}  // namespace inferx::cuda
