#include "cpu/rotary.h"

#include "cpu/parallel.h"

namespace inferx::cpu {

INFERX_SELECT_KERNELS(RotaryKernels, rotary_kernels)

void rotary_embedding(const RotaryParams& p) {
  constexpr int64_t kElementsPerThread = 32768;
  const RotaryKernels& kernels = rotary_kernels();
  const int64_t item = static_cast<int64_t>(dtype_size(p.dtype));
  int64_t per_token = 1;
  for (int i = 0; i < p.num_tensors; ++i) per_token += p.tensors[i].heads * p.rot_dim;
  parallel_for(p.num_tokens, kElementsPerThread / per_token + 1, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const float* cos = p.cos_sin_cache + p.positions[token * p.positions_stride] * p.cache_stride;
      const float* sin = cos + p.rot_dim / 2;
      for (int i = 0; i < p.num_tensors; ++i) {
        const RotaryTensor& x = p.tensors[i];
        char* first_head = static_cast<char*>(x.data) + token * x.token_stride * item;
        kernels.rotate_heads(p.dtype, first_head, x.heads, x.head_stride, cos, sin, p.rot_dim, p.is_neox);
      }
    }
  });
}

}  // namespace inferx::cpu
