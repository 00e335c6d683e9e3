// Rotary position embedding.
#pragma once
#include "cpu/isa.h"
#include "dtype.h"

namespace inferx::cpu {

struct RotaryKernels {
  // Turns the first rot_dim elements of `heads` vectors of `dtype`, head_stride elements apart, in place.
  // cos, sin: rot_dim / 2 floats each.  Pair i is (i, i + rot_dim / 2) when is_neox, else (2i, 2i + 1).
  void (*rotate_heads)(DType dtype, void* x, int64_t heads, int64_t head_stride, const float* cos,
                       const float* sin, int64_t rot_dim, bool is_neox);
};
INFERX_DECLARE_KERNELS(RotaryKernels, rotary_kernels)

// Query or key: vectors of `dtype` at data + token * token_stride + head * head_stride (elements).
struct RotaryTensor {
  void* data;
  int64_t token_stride, head_stride, heads;
};

struct RotaryParams {
  RotaryTensor tensors[2];  // query, key
  int num_tensors;
  DType dtype;
  const int64_t* positions;
  int64_t positions_stride, num_tokens;
  const float* cos_sin_cache;  // per position: rot_dim / 2 cosines, then as many sines
  int64_t cache_stride, rot_dim;
  bool is_neox;
};
void rotary_embedding(const RotaryParams& params);

}  // namespace inferx::cpu
