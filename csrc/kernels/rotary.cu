#include "kernels/rotary.cuh"
#include "kernels/rotary.h"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 128;

// One CTA a token.  A thread turns N neighbouring pairs of a head at a time.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) rotary_embedding_kernel(const __grid_constant__ RotaryParams p) {
  const int64_t token = blockIdx.x;
  const float* cos =
      rotary_row(p.cos_sin_cache, p.cache_stride, p.cache_rows, p.positions[token * p.positions_stride]);
  if (cos == nullptr) return;  // the whole CTA, and there is no barrier
  const int half = static_cast<int>(p.rot_dim / 2), per_head = half / N;
  for (int t = 0; t < p.num_tensors; ++t) {
    const RotaryTensor& tensor = p.tensors[t];
    T* const base = static_cast<T*>(tensor.data) + token * tensor.stride_token;
    const int units = static_cast<int>(tensor.num_heads) * per_head;
    for (int i = threadIdx.x; i < units; i += kThreads) {
      const int head = i / per_head, pair = i % per_head * N;
      T* const x = base + head * tensor.stride_head;
      const RotaryOffsets at = rotary_offsets<N>(pair, half, p.is_neox);
      auto lo = load_packed<N>(x + at.lo), hi = load_packed<N>(x + at.hi);
      rotate(lo, hi, load_packed<N>(cos + pair), load_packed<N>(cos + half + pair), p.is_neox);
      store_packed(x + at.lo, lo);
      store_packed(x + at.hi, hi);
    }
  }
}

// Whether eight pairs can move at once.
bool vectors_fit(const RotaryParams& p) {
  const size_t item = dtype_size(p.dtype);
  uintptr_t bits = reinterpret_cast<uintptr_t>(p.cos_sin_cache) | static_cast<uintptr_t>(p.cache_stride) * 4;
  for (int t = 0; t < p.num_tensors; ++t) {
    bits |= reinterpret_cast<uintptr_t>(p.tensors[t].data);
    bits |= static_cast<uintptr_t>(p.tensors[t].stride_token | p.tensors[t].stride_head) * item;
  }
  return bits % 16 == 0 && p.rot_dim % 16 == 0;
}

}  // namespace

Error launch_rotary_embedding(const RotaryParams& p, void* stream) {
  if (p.num_tokens == 0 || p.rot_dim == 0) return kSuccess;
  for (int t = 0; t < p.num_tensors; ++t) {
    if (p.tensors[t].num_heads * p.rot_dim > INT32_MAX) return kInvalidValue;
  }
  return dispatch_float(p.dtype, [&](auto element) {
    using T = decltype(element);
    const dim3 grid(static_cast<unsigned>(p.num_tokens));
    return vectors_fit(p) ? launch(rotary_embedding_kernel<T, 8>, grid, dim3(kThreads), 0, stream, p)
                          : launch(rotary_embedding_kernel<T, 1>, grid, dim3(kThreads), 0, stream, p);
  });
}

}  // namespace inferx::cuda
