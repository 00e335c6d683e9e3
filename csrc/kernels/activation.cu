// Bound by memory: two reads and one write an element.
#include "kernels/activation.h"
#include "kernels/gate_functions.cuh"
#include "kernels/group.cuh"

namespace inferx::cuda {
namespace {

using namespace simt;

constexpr int kThreads = 128;  // x 8 elements: 1,024 columns of one row a CTA
constexpr int64_t kColumns = kThreads * kGroup;
constexpr int64_t kMaxGridY = 65535;

// blockIdx.x = row, blockIdx.y = kColumns columns of it.
template <class F, class T>
__global__ void __launch_bounds__(kThreads)
    activate_and_mul_kernel(const __grid_constant__ ActivateAndMulParams p, bool x_aligned,
                            bool out_aligned) {
  const T* gate = static_cast<const T*>(p.x) + row_offset(p.x_rows, blockIdx.x);
  T* out = static_cast<T*>(p.out) + row_offset(p.out_rows, blockIdx.x);
  for (int64_t i = blockIdx.y * kColumns + threadIdx.x * kGroup; i < p.d; i += gridDim.y * kColumns) {
    float g[kGroup], u[kGroup];
    load_group(g, gate, i, p.d, x_aligned);
    load_group(u, gate + p.d, i, p.d, x_aligned);
#pragma unroll
    for (int k = 0; k < kGroup; ++k) g[k] = F::apply(g[k]) * u[k];
    store_group(out, i, p.d, out_aligned, g);
  }
}

}  // namespace

Error launch_activate_and_mul(const ActivateAndMulParams& p, void* stream) {
  if (p.x_rows.count == 0 || p.d == 0) return kSuccess;
  const size_t item = dtype_size(p.dtype);
  // The second half begins d elements into the row.
  const bool x_aligned = rows_aligned(p.x, p.x_rows, item) && p.d * item % 16 == 0;
  const bool out_aligned = rows_aligned(p.out, p.out_rows, item);
  const int64_t columns = (p.d + kColumns - 1) / kColumns;
  const dim3 grid(static_cast<unsigned>(p.x_rows.count),
                  static_cast<unsigned>(columns < kMaxGridY ? columns : kMaxGridY));
  return dispatch_float(p.dtype, [&](auto element) {
    using T = decltype(element);
    const auto go = [&](auto function) {
      return launch(activate_and_mul_kernel<decltype(function), T>, grid, dim3(kThreads), 0, stream, p,
                    x_aligned, out_aligned);
    };
    switch (p.activation) {
      case Activation::silu:
        return go(Silu{});
      case Activation::gelu:
        return go(Gelu{});
      case Activation::gelu_tanh:
        return go(GeluTanh{});
    }
    return kInvalidValue;
  });
}

}  // namespace inferx::cuda
