// Scalar functions that nvcc knows and a host compiler does not.  In the executor's build they are defined
// here, under CUDA's names, with the rounding that CUDA documents (the fast ones are more exact than there).
#pragma once
#include "simt/platform.h"
#include "simt/types.h"

#ifdef SIMT_CPU
#include <math.h>  // NOLINT: isnan, isinf and the rest in the global namespace, as under nvcc

#include <type_traits>

template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using C = std::common_type_t<A, B>;
  return static_cast<C>(a) > static_cast<C>(b) ? static_cast<C>(a) : static_cast<C>(b);
}
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using C = std::common_type_t<A, B>;
  return static_cast<C>(a) < static_cast<C>(b) ? static_cast<C>(a) : static_cast<C>(b);
}
// NaN loses against a number, as in fmaxf
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }

// ---- float ----
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frsqrt_rn(float a) { return static_cast<float>(1.0 / sqrt(static_cast<double>(a))); }
inline float rsqrtf(float a) { return __frsqrt_rn(a); }
inline double rsqrt(double a) { return 1.0 / sqrt(a); }
inline float __saturatef(float a) { return a > 0 ? (a < 1 ? a : 1.0f) : 0.0f; }  // NaN: 0

// ---- conversions; float to integer saturates, NaN gives 0 ----
namespace simt::host {
template <class I, class F>
I saturating(F x) {
  constexpr double low = static_cast<double>(std::is_signed_v<I> ? I(1) << (sizeof(I) * 8 - 1) : 0);
  constexpr double end = std::is_signed_v<I> ? -low : sizeof(I) == 8 ? 0x1p64 : 0x1p32;
  const double d = static_cast<double>(x);
  if (!(d > low)) return std::isnan(d) ? I(0) : static_cast<I>(low);
  return d >= end ? static_cast<I>(~I(0) ^ (std::is_signed_v<I> ? I(1) << (sizeof(I) * 8 - 1) : I(0)))
                  : static_cast<I>(d);
}
}  // namespace simt::host
inline int __float2int_rn(float x) { return simt::host::saturating<int>(nearbyintf(x)); }
inline int __float2int_rz(float x) { return simt::host::saturating<int>(truncf(x)); }
inline int __float2int_rd(float x) { return simt::host::saturating<int>(floorf(x)); }
inline int __float2int_ru(float x) { return simt::host::saturating<int>(ceilf(x)); }
inline unsigned __float2uint_rn(float x) { return simt::host::saturating<unsigned>(nearbyintf(x)); }
inline unsigned __float2uint_rz(float x) { return simt::host::saturating<unsigned>(truncf(x)); }
inline long long __float2ll_rn(float x) { return simt::host::saturating<long long>(nearbyintf(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return simt::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return simt::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return simt::bit_cast<float>(x); }
inline float __int_as_float(int x) { return simt::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return simt::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return simt::bit_cast<double>(x); }

// ---- bits and integers ----
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; ++i) r |= (x >> i & 1u) << (31 - i);
  return r;
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}
inline int __mulhi(int a, int b) { return static_cast<int>((static_cast<int64_t>(a) * b) >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
// Four bytes of {y, x} by the low three bits of each selector nibble; bit 3 replicates the byte's sign.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned r = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i) & 15u;
    unsigned byte = static_cast<unsigned>(both >> (8 * (s & 7u))) & 255u;
    if (s & 8u) byte = byte & 128u ? 255u : 0u;
    r |= byte << (8 * i);
  }
  return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
  return static_cast<unsigned>(((static_cast<uint64_t>(hi) << 32 | lo) << (shift & 31u)) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
  return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) >> (shift & 31u));
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += static_cast<uint8_t>(a >> (8 * i)) * static_cast<uint8_t>(b >> (8 * i));
  return c;
}

// ---- 16-bit floats: the CUDA headers have conversions, + - * /, comparisons, min and max on the host ----
inline __half __hfma(__half a, __half b, __half c) {  // the product is exact in double
  return __double2half(fma(static_cast<double>(__half2float(a)), __half2float(b), __half2float(c)));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __double2bfloat16(
      fma(static_cast<double>(__bfloat162float(a)), __bfloat162float(b), __bfloat162float(c)));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __halves2half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return __halves2bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}

// ---- the rest ----
inline void __trap() { __builtin_trap(); }
inline void __assume(bool) {}

#endif  // SIMT_CPU
