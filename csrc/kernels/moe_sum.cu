// Bound by memory: every element is read once.  A thread adds up eight columns of a token.
#include "kernels/group.cuh"
#include "kernels/moe_sum.h"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 128;  // 1,024 columns a CTA

template <class T>
__global__ void __launch_bounds__(kThreads)
    moe_sum_kernel(const __grid_constant__ MoeSumParams p, unsigned ctas_per_token, bool x_aligned,
                   bool out_aligned) {
  const unsigned token = blockIdx.x / ctas_per_token;
  const int64_t column =
      (static_cast<int64_t>(blockIdx.x % ctas_per_token) * kThreads + threadIdx.x) * kGroup;
  if (column >= p.hidden) return;
  const T* x = static_cast<const T*>(p.x) + token * p.token_stride;
  float sum[kGroup] = {};
#pragma unroll 4
  for (int64_t j = 0; j < p.top_k; ++j) {
    float v[kGroup];
    load_group(v, x + j * p.pair_stride, column, p.hidden, x_aligned);
#pragma unroll
    for (int k = 0; k < kGroup; ++k) sum[k] += v[k];
  }
  store_group(static_cast<T*>(p.out) + token * p.out_stride, column, p.hidden, out_aligned, sum);
}

bool aligned(const void* data, int64_t strides, size_t item) {
  return (reinterpret_cast<uintptr_t>(data) | static_cast<uintptr_t>(strides) * item) % 16 == 0;
}

}  // namespace

Error launch_moe_sum(const MoeSumParams& p, void* stream) {
  if (p.tokens == 0 || p.hidden == 0) return kSuccess;
  const size_t item = dtype_size(p.dtype);
  const int64_t ctas = (p.hidden + kThreads * kGroup - 1) / (kThreads * kGroup);
  if (ctas * p.tokens > INT32_MAX) return kInvalidValue;
  const dim3 grid(static_cast<unsigned>(ctas * p.tokens));
  return dispatch_float(p.dtype, [&](auto element) {
    return launch(moe_sum_kernel<decltype(element)>, grid, dim3(kThreads), 0, stream, p,
                  static_cast<unsigned>(ctas), aligned(p.x, p.token_stride | p.pair_stride, item),
                  aligned(p.out, p.out_stride, item));
  });
}

}  // namespace inferx::cuda
