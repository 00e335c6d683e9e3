#include "kernels/dtype_dispatch.h"
#include "kernels/norm.h"
#include "simt/simt.h"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 128;

// One CTA a row.
template <class T, class W>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(const __grid_constant__ RmsNormParams p) {
  SHARED(float, partial, [kThreads / 32]);
  const int64_t row = blockIdx.x;
  const T* x = static_cast<const T*>(p.x) + p.x_rows.offset(row);
  T* out = static_cast<T*>(p.out) + p.out_rows.offset(row);
  const W* weight = static_cast<const W*>(p.weight);

  float squares = 0;
  for (int64_t i = threadIdx.x; i < p.hidden; i += kThreads) {
    const float v = to_float(x[i]);
    squares = fmaf(v, v, squares);
  }
  squares = warp_sum(squares);
  if (lane_id() == 0) partial[threadIdx.x / 32] = squares;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < kThreads / 32; ++w) total += partial[w];
  const float factor = 1.0f / sqrtf(total / static_cast<float>(p.hidden) + p.eps);
  for (int64_t i = threadIdx.x; i < p.hidden; i += kThreads) {
    out[i] = from_float<T>(to_float(x[i]) * factor * to_float(weight[i]));
  }
}

}  // namespace

Error launch_rms_norm(const RmsNormParams& p, void* stream) {
  if (p.x_rows.count == 0 || p.hidden == 0) return kSuccess;
  return dispatch_float(p.dtype, [&](auto element) {
    using T = decltype(element);
    const auto go = [&](auto weight) {
      return launch(rms_norm_kernel<T, decltype(weight)>, dim3(p.x_rows.count), dim3(kThreads), 0, stream, p);
    };
    return p.weight_dtype == DType::f32 ? go(float{}) : go(T{});
  });
}

}  // namespace inferx::cuda
