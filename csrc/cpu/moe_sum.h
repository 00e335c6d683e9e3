// The sum over each token's experts.
#pragma once
#include "cpu/isa.h"
#include "dtype.h"

namespace inferx::cpu {

struct MoeSumKernels {
  // out[h] = sum over j < top_k of x[j * stride + h], in float32 and in order of j
  void (*moe_sum_row)(DType dtype, void* out, const void* x, int64_t top_k, int64_t stride, int64_t hidden);
};
INFERX_DECLARE_KERNELS(MoeSumKernels, moe_sum_kernels)

struct MoeSumParams {
  void* out;      // [tokens, hidden]
  const void* x;  // [tokens, top_k, hidden]
  DType dtype;
  int64_t tokens, top_k, hidden;
  int64_t out_stride, token_stride, pair_stride;  // in elements; the last dimensions are contiguous
};
void moe_sum(const MoeSumParams& params);

}  // namespace inferx::cpu
