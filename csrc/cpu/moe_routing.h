// From router logits to the experts of each token and their weights.
#pragma once
#include "cpu/isa.h"
#include "moe_routing_params.h"

namespace inferx::cpu {

struct MoeRoutingKernels {
  void (*route)(const moe::RoutingParams& params, int64_t begin, int64_t end);  // tokens [begin, end)
};
INFERX_DECLARE_KERNELS(MoeRoutingKernels, moe_routing_kernels)

void moe_routing(const moe::RoutingParams& params);

}  // namespace inferx::cpu
