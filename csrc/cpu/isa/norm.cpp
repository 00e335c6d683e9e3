#include "cpu/norm.h"

#include "cpu/isa/dispatch_dtype.h"
#include "cpu/isa/vec.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// Sum of the squares of value(i, count), i = 0, kLanes ... below n, in a fixed order.  Four running sums:
// with one, each addition would wait for the one before.
template <class Value>
inline float sum_of_squares(int64_t n, const Value& value) {
  F sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) {
      const F v = value(i + k * kLanes, int64_t{kLanes});
      sums[k] = fma(v, v, sums[k]);
    }
  }
  for (; i < n; i += kLanes) {
    const F v = value(i, n - i);
    sums[0] = fma(v, v, sums[0]);
  }
  return sum_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

inline F inverse_rms(float squares, int64_t n, float eps) {
  return splat(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
}

template <class T, class W>
inline void scale_row(T* out, const T* x, const W* weight, int64_t n, F factor) {
  for_each_vector(n, [&](int64_t i, int64_t count) {
    store(out + i, load(x + i, count) * factor * load(weight + i, count), count);
  });
}

template <class T, class W>
void rms_norm(T* out, const T* x, const W* weight, int64_t n, float eps) {
  const float squares = sum_of_squares(n, [&](int64_t i, int64_t count) { return load(x + i, count); });
  scale_row(out, x, weight, n, inverse_rms(squares, n, eps));
}

template <class T, class W>
void fused_add_rms_norm(T* x, T* residual, const W* weight, int64_t n, float eps) {
  const float squares = sum_of_squares(n, [&](int64_t i, int64_t count) {
    store(residual + i, load(residual + i, count) + load(x + i, count), count);
    return load(residual + i, count);  // the rounded sum: what an unfused norm would read
  });
  scale_row(x, residual, weight, n, inverse_rms(squares, n, eps));
}

// body(Type<element>, Type<weight>); the weight is float32 or of the elements' type.
template <class Body>
inline void dispatch(DType dtype, DType weight_dtype, const Body& body) {
  dispatch_dtype(dtype, [&](auto type) {
    if (weight_dtype == DType::f32) {
      body(type, Type<float>{});
    } else {
      body(type, type);
    }
  });
}

void rms_norm_row(DType dtype, DType weight_dtype, void* out, const void* x, const void* weight, int64_t n,
                  float eps) {
  dispatch(dtype, weight_dtype, [&](auto type, auto weight_type) {
    using T = typename decltype(type)::type;
    using W = typename decltype(weight_type)::type;
    rms_norm(static_cast<T*>(out), static_cast<const T*>(x), static_cast<const W*>(weight), n, eps);
  });
}

void fused_add_rms_norm_row(DType dtype, DType weight_dtype, void* x, void* residual, const void* weight,
                            int64_t n, float eps) {
  dispatch(dtype, weight_dtype, [&](auto type, auto weight_type) {
    using T = typename decltype(type)::type;
    using W = typename decltype(weight_type)::type;
    fused_add_rms_norm(static_cast<T*>(x), static_cast<T*>(residual), static_cast<const W*>(weight), n, eps);
  });
}

}  // namespace

const NormKernels norm_kernels = {rms_norm_row, fused_add_rms_norm_row};

}  // namespace inferx::cpu::INFERX_ISA
