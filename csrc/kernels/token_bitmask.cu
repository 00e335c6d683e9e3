// Bound by memory: a mask is read once, and only what it masks is written.  No logit is read, so a row with
// two masks loses the tokens of both, whatever their order.
#include <cmath>

#include "kernels/dtype_dispatch.h"
#include "kernels/packed.cuh"
#include "kernels/token_bitmask.h"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 256;
constexpr int kGroupsPerThread = 4;

// A thread has 16 bytes of logits at a time: their bits lie in one word.
template <class T>
constexpr int kItems = 16 / sizeof(T);
template <class T>
constexpr int kColumnsPerCta = kThreads * kGroupsPerThread * kItems<T>;

template <class T>
__global__ void __launch_bounds__(kThreads)
    apply_token_bitmask_kernel(const __grid_constant__ TokenBitmaskParams p, unsigned ctas_per_mask,
                               bool aligned) {
  constexpr int kN = kItems<T>;
  const int64_t mask = blockIdx.x / ctas_per_mask;
  const int64_t row = p.row_of(mask);
  if (row < 0 || row >= p.num_rows) return;
  T* x = static_cast<T*>(p.logits) + row * p.row_stride;
  const uint32_t* words = p.bitmask + mask * p.mask_stride;
  const int64_t first = static_cast<int64_t>(blockIdx.x % ctas_per_mask) * kColumnsPerCta<T>;
  Packed<T, kN> none;
#pragma unroll
  for (int k = 0; k < kN; ++k) none.at[k] = from_float<T>(-INFINITY);
#pragma unroll
  for (int g = 0; g < kGroupsPerThread; ++g) {
    const int64_t column = first + (g * kThreads + static_cast<int>(threadIdx.x)) * kN;
    if (column >= p.vocab) return;
    const int64_t word = column / 32;
    const uint32_t masked = ~(word < p.words ? words[word] : 0u) >> (column % 32);
    constexpr uint32_t kAll = (1u << kN) - 1;
    if (aligned && (masked & kAll) == kAll && column + kN <= p.vocab) {
      store_packed(x + column, none);
      continue;
    }
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      if ((masked >> k & 1) && column + k < p.vocab) x[column + k] = none.at[k];
    }
  }
}

}  // namespace

Error launch_apply_token_bitmask(const TokenBitmaskParams& p, void* stream) {
  if (p.count == 0 || p.vocab == 0) return kSuccess;
  const uintptr_t bits =
      reinterpret_cast<uintptr_t>(p.logits) | static_cast<uintptr_t>(p.row_stride) * dtype_size(p.dtype);
  return dispatch_float(p.dtype, [&](auto element) {
    using T = decltype(element);
    const int64_t ctas = (p.vocab + kColumnsPerCta<T> - 1) / kColumnsPerCta<T>;
    if (ctas * p.count > INT32_MAX) return kInvalidValue;
    return launch(apply_token_bitmask_kernel<T>, dim3(static_cast<unsigned>(ctas * p.count)), dim3(kThreads),
                  0, stream, p, static_cast<unsigned>(ctas), bits % 16 == 0);
  });
}

}  // namespace inferx::cuda
