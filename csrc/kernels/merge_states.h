// Two attention results over disjoint keys into one (Juravsky et al., "Hydragen", 2024, and the FlashInfer
// paper's section on composing attention states).
#pragma once
#include "dtype.h"
#include "kernels/launch.h"

namespace inferx::cuda {

// Outputs [num_tokens, num_heads, head_dim] of `dtype`, log-sum-exps float32 [num_tokens, num_heads].  A side
// of weight 0 is not read.  `out` may be `prefix` or `suffix`, `out_lse` likewise, or null.
struct MergeStatesParams {
  const void *prefix, *suffix;
  const float *prefix_lse, *suffix_lse;
  void* out;
  float* out_lse;
  DType dtype;
  int64_t prefix_stride_token, prefix_stride_head, suffix_stride_token, suffix_stride_head;
  int64_t prefix_lse_stride_token, prefix_lse_stride_head, suffix_lse_stride_token, suffix_lse_stride_head;
  int64_t out_stride_token, out_stride_head, out_lse_stride_token, out_lse_stride_head;
  int64_t num_tokens, num_heads, head_dim;
};
Error launch_merge_states(const MergeStatesParams& params, void* stream);

}  // namespace inferx::cuda
