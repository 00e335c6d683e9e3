#include "cpu/moe_routing.h"

#include "cpu/parallel.h"

namespace inferx::cpu {

INFERX_SELECT_KERNELS(MoeRoutingKernels, moe_routing_kernels)

void moe_routing(const moe::RoutingParams& p) {
  const MoeRoutingKernels& kernels = moe_routing_kernels();
  constexpr int64_t kExpertsPerThread = 4096;  // some 5 us
  parallel_for(p.tokens, kExpertsPerThread / (p.experts + 64) + 1,
               [&](int64_t begin, int64_t end) { kernels.route(p, begin, end); });
}

}  // namespace inferx::cpu
