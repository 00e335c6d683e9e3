// Pairs of fp8 numbers to and from pairs of wider ones; element 0 is in the low bits.
//
// fp8 to wider is exact, NaN included.  Wider to fp8 rounds to nearest even and saturates to the largest
// finite number (448 in e4m3), infinities too; NaN stays NaN.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "simt/arch.h"
#include "simt/shared.h"

namespace simt {

// By bit arithmetic, on every architecture: the bits moved into a wider format are the number times a power
// of two (2^-8 in f16, 2^-120 in bf16), subnormal numbers too, so one exact multiplication finishes the job.
SIMT_DEV uint32_t e4m3x2_to_f16x2_bits(uint16_t x) {
  const uint32_t wide = (x & 0xFFu) | (x & 0xFF00u) << 8;
  const uint32_t magnitude = (wide & 0x007F007Fu) << 7;
  const uint32_t sign = (wide & 0x00800080u) << 8;
  const uint32_t nan = ((magnitude + 0x00800080u) >> 14) & 0x00010001u;  // 1 where all seven bits are set
  const __half2 scale = __half2half2(__ushort_as_half(static_cast<unsigned short>(0x5C00)));  // 2^8
  __half2 value;
  memcpy(static_cast<void*>(&value), &magnitude, 4);
  value = __hmul2(value, scale);
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return (bits | sign | nan * 0x7FFFu) & ~(nan << 15);
}

SIMT_DEV uint32_t e4m3x2_to_bf16x2(uint16_t x) {
  const uint32_t wide = (x & 0xFFu) | (x & 0xFF00u) << 8;
  const uint32_t magnitude = (wide & 0x007F007Fu) << 4;
  const uint32_t sign = (wide & 0x00800080u) << 8;
  const uint32_t nan = ((magnitude + 0x00100010u) >> 11) & 0x00010001u;
  const __nv_bfloat16 scale = __ushort_as_bfloat16(static_cast<unsigned short>(0x7B80));  // 2^120
  __nv_bfloat162 value;
  memcpy(static_cast<void*>(&value), &magnitude, 4);
  value = __hmul2(value, __nv_bfloat162(scale, scale));
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return (bits | sign | nan * 0x7FFFu) & ~(nan << 15);
}

// One instruction since sm_89.
SIMT_DEV uint32_t e4m3x2_to_f16x2(uint16_t x) {
#if SIMT_ARCH >= 890
  uint32_t r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(x));
  return r;
#else
  return e4m3x2_to_f16x2_bits(x);
#endif
}

// e5m2 is the upper half of an f16; unlike the instruction, this keeps a NaN's sign and payload.
SIMT_DEV uint32_t e5m2x2_to_f16x2(uint16_t x) { return (x & 0xFFu) << 8 | (x & 0xFF00u) << 16; }

// Four at once: out[0] holds elements 0 and 1.
SIMT_DEV void e4m3x4_to_f16x4(uint32_t (&out)[2], uint32_t x) {
  out[0] = e4m3x2_to_f16x2(static_cast<uint16_t>(x));
  out[1] = e4m3x2_to_f16x2(static_cast<uint16_t>(x >> 16));
}
SIMT_DEV void e4m3x4_to_bf16x4(uint32_t (&out)[2], uint32_t x) {
  out[0] = e4m3x2_to_bf16x2(static_cast<uint16_t>(x));
  out[1] = e4m3x2_to_bf16x2(static_cast<uint16_t>(x >> 16));
}

// Rounded once, from the float.  One instruction since sm_89.
SIMT_DEV uint16_t f32x2_to_e4m3x2(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}
SIMT_DEV uint32_t f32x4_to_e4m3x4(float x0, float x1, float x2, float x3) {
  return f32x2_to_e4m3x2(x0, x1) | static_cast<uint32_t>(f32x2_to_e4m3x2(x2, x3)) << 16;
}
SIMT_DEV uint16_t f16x2_to_e4m3x2(uint32_t x) {
  __half2_raw pair;
  pair.x = static_cast<unsigned short>(x);
  pair.y = static_cast<unsigned short>(x >> 16);
  return __nv_cvt_halfraw2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
}
SIMT_DEV uint16_t f32x2_to_e5m2x2(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E5M2);
}

}  // namespace simt
