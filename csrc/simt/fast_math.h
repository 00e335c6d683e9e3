// Approximate functions of the GPU's special function unit: one instruction each, subnormals count as zero.
// On the host they are the exact ones, so a result may differ from the GPU's in the last bits (bounds: PTX
// ISA, "Floating Point Instructions").
#pragma once
#include "simt/platform.h"

namespace simt {

#ifdef SIMT_GPU
#define SIMT_APPROX(name, instruction)              \
  SIMT_DEV float name(float x) {                    \
    float r;                                        \
    asm(instruction " %0, %1;" : "=f"(r) : "f"(x)); \
    return r;                                       \
  }
#else
namespace host {
inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
}  // namespace host
#define SIMT_APPROX(name, exact) \
  inline float name(float x) {   \
    x = host::flushed(x);        \
    return host::flushed(exact); \
  }
#endif

#ifdef SIMT_GPU
SIMT_APPROX(fast_exp2, "ex2.approx.ftz.f32")  // 2^x; relative error 2^-22.5 (PTX ISA)
SIMT_APPROX(fast_log2, "lg2.approx.ftz.f32")  // absolute error 2^-22 near 1
SIMT_APPROX(fast_rcp, "rcp.approx.ftz.f32")   // 1 ulp
SIMT_APPROX(fast_rsqrt, "rsqrt.approx.ftz.f32")
SIMT_APPROX(fast_tanh, "tanh.approx.f32")  // sm_75; relative error 2^-11: for activations in 16 bits only
#else
SIMT_APPROX(fast_exp2, exp2f(x))
SIMT_APPROX(fast_log2, log2f(x))
SIMT_APPROX(fast_rcp, 1.0f / x)
SIMT_APPROX(fast_rsqrt, 1.0f / sqrtf(x))
inline float fast_tanh(float x) { return tanhf(x); }
#endif
#undef SIMT_APPROX

}  // namespace simt
