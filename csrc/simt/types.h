// Element types and packed conversions, the same in both builds: the CUDA headers convert in software on the
// host, bit for bit as the GPU does.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "simt/platform.h"

namespace simt {

using bf16 = __nv_bfloat16;
using bf16x2 = __nv_bfloat162;
using f16 = __half;
using f16x2 = __half2;
using e4m3 = __nv_fp8_e4m3;
using e5m2 = __nv_fp8_e5m2;

template <class To, class From>
SIMT_DEV To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(static_cast<void*>(&to), &from, sizeof to);
  return to;
}

// Two floats into one register, the first in the low half; rounds to nearest even.
SIMT_DEV uint32_t pack_bf16(float lo, float hi) { return bit_cast<uint32_t>(__floats2bfloat162_rn(lo, hi)); }
SIMT_DEV uint32_t pack_f16(float lo, float hi) { return bit_cast<uint32_t>(__floats2half2_rn(lo, hi)); }
// And back: x from the low half.
SIMT_DEV float2 unpack_bf16(uint32_t v) {
  return make_float2(bit_cast<float>(v << 16), bit_cast<float>(v & 0xFFFF0000u));
}
SIMT_DEV float2 unpack_f16(uint32_t v) { return __half22float2(bit_cast<__half2>(v)); }

// fp8: two values in 16 bits.  Out-of-range values saturate, NaN stays NaN.
SIMT_DEV uint16_t pack_e4m3(float lo, float hi) {
  return __nv_cvt_float2_to_fp8x2(make_float2(lo, hi), __NV_SATFINITE, __NV_E4M3);
}
SIMT_DEV uint16_t pack_e5m2(float lo, float hi) {
  return __nv_cvt_float2_to_fp8x2(make_float2(lo, hi), __NV_SATFINITE, __NV_E5M2);
}
SIMT_DEV float2 unpack_e4m3(uint16_t v) {
  return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(v, __NV_E4M3)));
}
SIMT_DEV float2 unpack_e5m2(uint16_t v) {
  return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(v, __NV_E5M2)));
}

}  // namespace simt
