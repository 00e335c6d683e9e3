// Bound by memory: a row is read once from global memory and a second time from the first-level cache.
//
// Which thread adds which elements depends on `hidden` alone, so a row's bits depend on that row alone.
#include <algorithm>

#include "kernels/group.cuh"
#include "kernels/norm.h"

namespace inferx::cuda {
namespace {

using namespace simt;

// Short rows (the heads of a query/key norm) get a warp each, long ones a CTA: 256 threads x 8 elements are
// one trip through a hidden size of 2,048.
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kWarpRow = 512;

// The threads that share a row: a warp or the CTA.
template <bool kIsWarp>
struct RowThreads {
  static constexpr int kCount = kIsWarp ? 32 : kThreads;
  static constexpr int kRowsPerCta = kThreads / kCount;

  SIMT_DEV static int64_t row() {
    return static_cast<int64_t>(blockIdx.x) * kRowsPerCta + (kIsWarp ? threadIdx.x / 32 : 0);
  }
  SIMT_DEV static int index() { return kIsWarp ? threadIdx.x % 32 : threadIdx.x; }
  // The sum over the row's threads, in a fixed order.
  SIMT_DEV static float sum(float value, float* partial) {
    value = warp_sum(value);
    if constexpr (kIsWarp) return value;
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += partial[w];
    return total;
  }
};

SIMT_DEV float squares(const float (&v)[kGroup]) {
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kGroup; ++k) sum = fmaf(v[k], v[k], sum);
  return sum;
}

// out[i] = value(i) * factor * weight[i], for this thread's groups of the row.
template <class Threads, class T, class W, class Load>
SIMT_DEV void scale_row(T* out, bool out_aligned, const W* weight, bool weight_aligned, int64_t hidden,
                        float factor, const Load& load) {
  for (int64_t i = Threads::index() * kGroup; i < hidden; i += Threads::kCount * kGroup) {
    float v[kGroup], w[kGroup];
    load(i, v);
    load_group(w, weight, i, hidden, weight_aligned);
#pragma unroll
    for (int k = 0; k < kGroup; ++k) v[k] = v[k] * factor * w[k];
    store_group(out, i, hidden, out_aligned, v);
  }
}

struct Alignment {
  bool first, second, weight;
};

template <class Threads, class T, class W>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const __grid_constant__ RmsNormParams p, Alignment aligned) {
  SHARED(float, partial, [kWarps]);
  const int64_t row = Threads::row();
  if (row >= p.x_rows.count) return;  // whole warps, where a CTA holds several rows
  const T* x = static_cast<const T*>(p.x) + row_offset(p.x_rows, row);
  T* out = static_cast<T*>(p.out) + row_offset(p.out_rows, row);
  const auto load = [&](int64_t i, float (&v)[kGroup]) { load_group(v, x, i, p.hidden, aligned.second); };

  float sum = 0.0f;
  for (int64_t i = Threads::index() * kGroup; i < p.hidden; i += Threads::kCount * kGroup) {
    float v[kGroup];
    load(i, v);
    sum += squares(v);
  }
  const float factor = 1.0f / sqrtf(Threads::sum(sum, partial) / static_cast<float>(p.hidden) + p.eps);
  scale_row<Threads>(out, aligned.first, static_cast<const W*>(p.weight), aligned.weight, p.hidden, factor,
                     load);
}

template <class Threads, class T, class W>
__global__ void __launch_bounds__(kThreads)
    fused_add_rms_norm_kernel(const __grid_constant__ FusedAddRmsNormParams p, Alignment aligned) {
  SHARED(float, partial, [kWarps]);
  const int64_t row = Threads::row();
  if (row >= p.x_rows.count) return;
  T* x = static_cast<T*>(p.x) + row_offset(p.x_rows, row);
  T* residual = static_cast<T*>(p.residual) + row_offset(p.residual_rows, row);
  const auto load = [&](int64_t i, float (&v)[kGroup]) {
    load_group(v, residual, i, p.hidden, aligned.second);
  };

  float sum = 0.0f;
  for (int64_t i = Threads::index() * kGroup; i < p.hidden; i += Threads::kCount * kGroup) {
    float v[kGroup], added[kGroup];
    load(i, v);
    load_group(added, x, i, p.hidden, aligned.first);
#pragma unroll
    for (int k = 0; k < kGroup; ++k) v[k] = to_float(from_float<T>(v[k] + added[k]));
    store_group(residual, i, p.hidden, aligned.second, v);
    sum += squares(v);
  }
  const float factor = 1.0f / sqrtf(Threads::sum(sum, partial) / static_cast<float>(p.hidden) + p.eps);
  // A thread reads back only what it wrote itself.
  scale_row<Threads>(x, aligned.first, static_cast<const W*>(p.weight), aligned.weight, p.hidden, factor,
                     load);
}

// body(RowThreads, T{}, W{}, dim3 grid)
template <class Params, class Body>
Error dispatch(const Params& p, const Rows& rows, const Body& body) {
  if (rows.count == 0 || p.hidden == 0) return kSuccess;
  return dispatch_float(p.dtype, [&](auto element) {
    const auto with_weight = [&](auto weight) {
      if (p.hidden <= kWarpRow) {
        const int64_t ctas = (rows.count + kWarps - 1) / kWarps;
        return body(RowThreads<true>{}, element, weight, dim3(static_cast<unsigned>(ctas)));
      }
      return body(RowThreads<false>{}, element, weight, dim3(static_cast<unsigned>(rows.count)));
    };
    return p.weight_dtype == DType::f32 ? with_weight(float{}) : with_weight(element);
  });
}

bool weight_aligned(const void* weight) { return reinterpret_cast<uintptr_t>(weight) % 16 == 0; }

}  // namespace

Error launch_rms_norm(const RmsNormParams& p, void* stream) {
  const size_t item = dtype_size(p.dtype);
  const Alignment aligned{rows_aligned(p.out, p.out_rows, item), rows_aligned(p.x, p.x_rows, item),
                          weight_aligned(p.weight)};
  return dispatch(p, p.x_rows, [&](auto threads, auto element, auto weight, dim3 grid) {
    return launch(rms_norm_kernel<decltype(threads), decltype(element), decltype(weight)>, grid,
                  dim3(kThreads), 0, stream, p, aligned);
  });
}

Error launch_fused_add_rms_norm(const FusedAddRmsNormParams& p, void* stream) {
  const size_t item = dtype_size(p.dtype);
  const Alignment aligned{rows_aligned(p.x, p.x_rows, item), rows_aligned(p.residual, p.residual_rows, item),
                          weight_aligned(p.weight)};
  return dispatch(p, p.x_rows, [&](auto threads, auto element, auto weight, dim3 grid) {
    return launch(fused_add_rms_norm_kernel<decltype(threads), decltype(element), decltype(weight)>, grid,
                  dim3(kThreads), 0, stream, p, aligned);
  });
}

}  // namespace inferx::cuda
