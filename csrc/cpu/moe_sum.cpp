#include "cpu/moe_sum.h"

#include "cpu/parallel.h"

namespace inferx::cpu {

INFERX_SELECT_KERNELS(MoeSumKernels, moe_sum_kernels)

void moe_sum(const MoeSumParams& p) {
  const MoeSumKernels& kernels = moe_sum_kernels();
  constexpr int64_t kElementsPerThread = 65536;  // some 5 us
  const int64_t item = static_cast<int64_t>(dtype_size(p.dtype));
  parallel_for(p.tokens, kElementsPerThread / (p.top_k * p.hidden + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      kernels.moe_sum_row(p.dtype, static_cast<char*>(p.out) + t * p.out_stride * item,
                          static_cast<const char*>(p.x) + t * p.token_stride * item, p.top_k, p.pair_stride,
                          p.hidden);
    }
  });
}

}  // namespace inferx::cpu
