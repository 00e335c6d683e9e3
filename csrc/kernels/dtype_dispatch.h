// From a dtype known at run time to a type known to the compiler, and element conversions.
#pragma once
#include "dtype.h"
#include "kernels/launch.h"
#include "simt/simt.h"

namespace inferx::cuda {

// A launcher was called with a dtype or size that its binding should have refused.
constexpr Error kInvalidValue = 1;  // cudaErrorInvalidValue

// body(T{}) with T = float, __half or __nv_bfloat16; returns its Error.
template <class Body>
Error dispatch_float(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::f16:
      return body(__half{});
    case DType::bf16:
      return body(__nv_bfloat16{});
    default:
      return kInvalidValue;
  }
}

SIMT_DEV float to_float(float x) { return x; }
SIMT_DEV float to_float(__half x) { return __half2float(x); }
SIMT_DEV float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
SIMT_DEV T from_float(float x);
template <>
SIMT_DEV float from_float<float>(float x) {
  return x;
}
template <>
SIMT_DEV __half from_float<__half>(float x) {
  return __float2half_rn(x);
}
template <>
SIMT_DEV __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

}  // namespace inferx::cuda
