#include "kernels/group.cuh"
#include "kernels/merge_states.h"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 128;
constexpr int kRows = kThreads / 32;  // a warp takes one head of one token

template <class T>
__global__ void __launch_bounds__(kThreads)
    merge_states_kernel(const __grid_constant__ MergeStatesParams p, bool aligned) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / 32;
  if (row >= p.num_tokens * p.num_heads) return;  // whole warps
  const int64_t token = row / p.num_heads, head = row % p.num_heads;
  const float prefix_lse = p.prefix_lse[token * p.prefix_lse_stride_token + head * p.prefix_lse_stride_head];
  const float suffix_lse = p.suffix_lse[token * p.suffix_lse_stride_token + head * p.suffix_lse_stride_head];
  const T* prefix =
      static_cast<const T*>(p.prefix) + token * p.prefix_stride_token + head * p.prefix_stride_head;
  const T* suffix =
      static_cast<const T*>(p.suffix) + token * p.suffix_stride_token + head * p.suffix_stride_head;
  T* out = static_cast<T*>(p.out) + token * p.out_stride_token + head * p.out_stride_head;

  const float max = fmaxf(prefix_lse, suffix_lse);
  const float safe = fabsf(max) < INFINITY ? max : 0.0f;
  const float a = expf(prefix_lse - safe), b = expf(suffix_lse - safe);
  const float sum = a + b;
  const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
  const float wa = a * inverse, wb = b * inverse;
  for (int64_t i = threadIdx.x % 32 * kGroup; i < p.head_dim; i += 32 * kGroup) {
    float v[kGroup] = {}, s[kGroup];
    if (wa != 0.0f) load_group(v, prefix, i, p.head_dim, aligned);
    if (wb != 0.0f) {
      load_group(s, suffix, i, p.head_dim, aligned);
#pragma unroll
      for (int k = 0; k < kGroup; ++k) v[k] = wa != 0.0f ? fmaf(v[k], wa, s[k] * wb) : s[k];
    }
    store_group(out, i, p.head_dim, aligned, v);
  }
  // The lanes have read both sums: out_lse may be one of them.
  __syncwarp();
  if (p.out_lse != nullptr && threadIdx.x % 32 == 0) {
    p.out_lse[token * p.out_lse_stride_token + head * p.out_lse_stride_head] =
        sum == 0.0f ? -INFINITY : max + logf(sum);
  }
}

bool aligned_rows(const void* data, int64_t stride_token, int64_t stride_head, size_t item) {
  return (reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(stride_token | stride_head) * item) %
             16 ==
         0;
}

}  // namespace

Error launch_merge_states(const MergeStatesParams& p, void* stream) {
  const int64_t rows = p.num_tokens * p.num_heads;
  if (rows == 0) return kSuccess;
  const size_t item = dtype_size(p.dtype);
  const bool aligned = aligned_rows(p.prefix, p.prefix_stride_token, p.prefix_stride_head, item) &&
                       aligned_rows(p.suffix, p.suffix_stride_token, p.suffix_stride_head, item) &&
                       aligned_rows(p.out, p.out_stride_token, p.out_stride_head, item);
  return dispatch_float(p.dtype, [&](auto element) {
    return launch(merge_states_kernel<decltype(element)>,
                  dim3(static_cast<unsigned>((rows + kRows - 1) / kRows)), dim3(kThreads), 0, stream, p,
                  aligned);
  });
}

}  // namespace inferx::cuda
