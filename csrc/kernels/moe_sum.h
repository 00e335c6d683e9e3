// The sum over each token's experts, on the device.  csrc/cpu/moe_sum.h has the same for the CPU.
#pragma once
#include "dtype.h"
#include "kernels/launch.h"

namespace inferx::cuda {

struct MoeSumParams {
  void* out;      // [tokens, hidden]
  const void* x;  // [tokens, top_k, hidden]
  DType dtype;
  int64_t tokens, top_k, hidden;
  int64_t out_stride, token_stride, pair_stride;  // in elements; the last dimensions are contiguous
};
Error launch_moe_sum(const MoeSumParams& params, void* stream);

}  // namespace inferx::cuda
