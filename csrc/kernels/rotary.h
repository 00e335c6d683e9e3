// Rotary position embedding on the device, in place.  See csrc/cpu/rotary.h.
#pragma once
#include <cstdint>

#include "dtype.h"
#include "kernels/launch.h"

namespace inferx::cuda {

// One of query and key: [num_tokens, num_heads, head_size], strides in elements.
struct RotaryTensor {
  void* data;
  int64_t stride_token, stride_head, num_heads;
};

// A token whose position is not a row of the table stays as it is: the host cannot look at positions.
struct RotaryParams {
  RotaryTensor tensors[2];
  int num_tensors;
  DType dtype;
  const int64_t* positions;
  int64_t positions_stride, num_tokens;
  const float* cos_sin_cache;  // [cache_rows, rot_dim]: rot_dim / 2 cosines, then as many sines
  int64_t cache_stride, cache_rows, rot_dim;
  bool is_neox;
};
Error launch_rotary_embedding(const RotaryParams& params, void* stream);

}  // namespace inferx::cuda
