// exp and the scaled complementary error function of float vectors.  Branch-free, so a lane's result depends
// on that lane alone.  The error function's polynomial is a least-squares fit at Chebyshev points, made in
// double.
#pragma once
#include "cpu/isa/vec.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// c[0] + c[1] x + ... + c[N-1] x^(N-1)
template <int N>
inline F polynomial(F x, const float (&c)[N]) {
  F sum = splat(c[N - 1]);
  for (int i = N - 2; i >= 0; --i) sum = fma(sum, x, splat(c[i]));
  return sum;
}

// Within 2 ulp, subnormal results included; exp(-inf) = 0, exp(inf) = inf, NaN stays.
inline F exp(F x) {
  x = select(x > splat(89.0f), splat(89.0f), x);      // the scaling below makes inf of it
  x = select(x < splat(-104.0f), splat(-104.0f), x);  // and 0 of this
  // x = n ln2 + r with |r| <= ln2 / 2.  Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const F shifter = splat(0x1.8p23f);
  const F shifted = x * splat(0x1.715476p0f) + shifter;
  const F n = shifted - shifter;
  // ln2 in two parts; n times the first is exact, also without a fused multiply-add.
  F r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  // 1 + r + r^2 (1/2! + r/3! + ... + r^5/7!)
  static constexpr float c[] = {1.f / 2, 1.f / 6, 1.f / 24, 1.f / 120, 1.f / 720, 1.f / 5040};
  const F p = fma(r * r, polynomial(r, c), r) + splat(1.0f);
  // Times 2^n in two steps: 2^n alone may be out of range.
  const I exponent = (I)shifted - (I)shifter;
  const I half = exponent >> 1;
  const F scale1 = (F)((half + 127) << 23);
  const F scale2 = (F)((exponent - half + 127) << 23);
  return p * scale1 * scale2;
}

// exp(z^2) erfc(z) for 0 <= z <= 10.5, about 2e-7 relative: P(t) / (1 + 2z) with t = (z - 3) / (z + 3).  A
// larger z gives the value at 10.5, which is right wherever it is multiplied by exp(-z^2) (0 from there on).
inline F erfcx(F z) {
  z = select(z > splat(10.5f), splat(10.5f), z);
  static constexpr float c[] = {1.25300806f,    -0.135621146f,    -0.0475623863f,  0.129646598f,
                                -0.119270996f,  0.0682944779f,    -0.0237984651f,  0.00256987712f,
                                0.00200512455f, -0.000777033473f, -0.000268560773f};
  const F t = (z - splat(3.0f)) / (z + splat(3.0f));
  return polynomial(t, c) / fma(z, splat(2.0f), splat(1.0f));
}

}  // namespace
}  // namespace inferx::cpu::INFERX_ISA
