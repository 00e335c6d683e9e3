// Functions of one thread, element by element: tests/simt/test_functions.py compares with float64 and Python.
#include "simt/selftest/selftest.h"

namespace {

using namespace simt;

// out[i][f] = function f of in[i]
constexpr int kFloatFunctions = 12;
__global__ void float_functions(const float* in, float* out, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    const float x = in[i];
    float* o = out + static_cast<int64_t>(i) * kFloatFunctions;
    o[0] = fast_exp2(x);
    o[1] = fast_log2(x);
    o[2] = fast_rcp(x);
    o[3] = fast_rsqrt(x);
    o[4] = fast_tanh(x);
    o[5] = __expf(x);
    o[6] = __logf(x);
    o[7] = rsqrtf(x);
    o[8] = __saturatef(x);
    o[9] = max(x, 1.0f);
    o[10] = min(x, 1.0f);
    o[11] = __frcp_rn(x);
  }
}
SELFTEST(float_functions) {
  return test.launch(float_functions, test.in<float>(0), test.out<float>(0),
                     static_cast<int>(test.number(0)));
}

constexpr int kToInteger = 7;
__global__ void float_to_integer(const float* in, int64_t* out, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    int64_t* o = out + static_cast<int64_t>(i) * kToInteger;
    o[0] = __float2int_rn(in[i]);
    o[1] = __float2int_rz(in[i]);
    o[2] = __float2int_rd(in[i]);
    o[3] = __float2int_ru(in[i]);
    o[4] = __float2uint_rn(in[i]);
    o[5] = __float2uint_rz(in[i]);
    o[6] = __float2ll_rn(in[i]);
  }
}
SELFTEST(float_to_integer) {
  return test.launch(float_to_integer, test.in<float>(0), test.out<int64_t>(0),
                     static_cast<int>(test.number(0)));
}

// in: triples.
constexpr int kInteger = 15;
__global__ void integer_functions(const int* in, int64_t* out, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) {
    const int a = in[3 * i], b = in[3 * i + 1], c = in[3 * i + 2];
    const auto ua = static_cast<unsigned>(a), ub = static_cast<unsigned>(b), uc = static_cast<unsigned>(c);
    const auto wide = static_cast<unsigned long long>(ua) << 32 | ub;
    int64_t* o = out + static_cast<int64_t>(i) * kInteger;
    o[0] = __popc(ua);
    o[1] = __ffs(a);
    o[2] = __clz(a);
    o[3] = __brev(ua);
    o[4] = __popcll(wide);
    o[5] = __ffsll(static_cast<long long>(wide));
    o[6] = __clzll(static_cast<long long>(wide));
    o[7] = static_cast<int64_t>(__brevll(wide));
    o[8] = __mulhi(a, b);
    o[9] = __umulhi(ua, ub);
    o[10] = static_cast<int64_t>(__umul64hi(wide, wide));
    o[11] = __byte_perm(ua, ub, uc);
    o[12] = __funnelshift_l(ua, ub, uc);
    o[13] = __funnelshift_r(ua, ub, uc);
    o[14] = __dp4a(a, b, c);
  }
}
SELFTEST(integer_functions) {
  return test.launch(integer_functions, test.in<int>(0), test.out<int64_t>(0),
                     static_cast<int>(test.number(0)));
}

// fma of 16-bit floats: rounded once.
__global__ void half_fma(const __half* in, __half* out, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < n) out[i] = __hfma(in[3 * i], in[3 * i + 1], in[3 * i + 2]);
}
SELFTEST(half_fma) {
  return test.launch(half_fma, test.in<__half>(0), test.out<__half>(0), static_cast<int>(test.number(0)));
}
__global__ void bfloat_fma(const bf16* in, bf16* out, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < n) out[i] = __hfma(in[3 * i], in[3 * i + 1], in[3 * i + 2]);
}
SELFTEST(bfloat_fma) {
  return test.launch(bfloat_fma, test.in<bf16>(0), test.out<bf16>(0), static_cast<int>(test.number(0)));
}

// Pairs of floats packed and unpacked again, in four formats.
__global__ void packed(const float2* in, float2* out, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= n) return;
  const float2 v = in[i];
  out[4 * i] = unpack_bf16(pack_bf16(v.x, v.y));
  out[4 * i + 1] = unpack_f16(pack_f16(v.x, v.y));
  out[4 * i + 2] = unpack_e4m3(pack_e4m3(v.x, v.y));
  out[4 * i + 3] = unpack_e5m2(pack_e5m2(v.x, v.y));
}
SELFTEST(packed) {
  return test.launch(packed, test.in<float2>(0), test.out<float2>(0), static_cast<int>(test.number(0)));
}

}  // namespace
