// The arithmetic of sampling that CPU and device share, so that a seed gives one token everywhere.
//
// Floats are used only in fixed sequences of IEEE operations, each rounded once (nothing is contracted; a
// fused multiply-add is written out).  Whatever is summed is an integer, so the order of summing is free.
// Everything is static: the copies of csrc/cpu/isa must not meet in the linker.
#pragma once
#include <math.h>
#include <string.h>

#include "rows.h"  // INFERX_HOST_DEVICE

namespace inferx::sampling {

// A token's weight is floor(exp(z) * 2^kWeightBits), z <= 0: the best token's is 2^kWeightBits.
constexpr int kWeightBits = 42;
constexpr int64_t kOne = int64_t{1} << kWeightBits;
// A row's weights must add up to less than 2^63.
constexpr int64_t kMaxVocab = int64_t{1} << (62 - kWeightBits);
// From here down every weight is 0: exp(-29.2) < 2^-42.
constexpr float kLeastZ = -29.2f;

#define INFERX_SAMPLING static inline INFERX_HOST_DEVICE

INFERX_SAMPLING uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

INFERX_SAMPLING float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// exp(z) for -29.2 <= z <= 0, within 1 ulp.  exp(0) = 1, and it never falls as z grows (seen for every
// float).
INFERX_SAMPLING float exp_nonpositive(float z) {
  // z = n ln2 + r with |r| <= ln2 / 2.  Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const float shifted = fmaf(z, 0x1.715476p0f, 0x1.8p23f);
  const float n = shifted - 0x1.8p23f;
  float r = fmaf(n, -0.693359375f, z);  // ten bits of ln2, so this is exact
  r = fmaf(n, 2.12194440e-4f, r);
  // 1 + r + r^2 q(r); q is a least-squares fit at Chebyshev points, its error 2^-28 of the result.
  float p = 0x1.685f02p-10f;
  p = fmaf(p, r, 0x1.123d3cp-7f);
  p = fmaf(p, r, 0x1.555b8ep-5f);
  p = fmaf(p, r, 0x1.55548cp-3f);
  p = fmaf(p, r, 0x1.fffff8p-2f);
  p = fmaf(r * r, p, r) + 1.0f;  // one large term last: what rounds before it is too small to break the order
  return float_of(bits_of(p) + (bits_of(shifted) << 23));  // the low bits of `shifted` are n
}

// floor(exp(z) * 2^42); 0 for NaN, which is -inf at an infinite temperature.
INFERX_SAMPLING int64_t weight_of(float z) {
  const bool counts = z >= kLeastZ;
  const uint32_t bits = bits_of(exp_nonpositive(counts ? z : 0.0f));
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  const uint64_t weight = (mantissa << (kWeightBits - 23)) >> (127 - (bits >> 23));
  return counts ? static_cast<int64_t>(weight) : 0;
}

// What a temperature multiplies x - max with; finite also for the tiniest, for which (x - max) = 0 stays 0.
INFERX_SAMPLING float inverse_temperature(float temperature) {
  const float inverse = 1.0f / temperature;
  return inverse < 3.4028234e38f ? inverse : 3.4028234e38f;
}

// Sorts like x; -0 and +0 are equal.  NaN has no place.
INFERX_SAMPLING uint32_t key_of(float x) {
  const uint32_t bits = bits_of(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

INFERX_SAMPLING float value_of(uint32_t key) {
  return float_of(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// A token's place in its row: falling x, equal ones by rising id.  All are different.
INFERX_SAMPLING uint64_t order_of(float x, int64_t id) {
  return static_cast<uint64_t>(~key_of(x)) << 32 | static_cast<uint32_t>(id);
}
INFERX_SAMPLING float order_value(uint64_t order) { return value_of(~static_cast<uint32_t>(order >> 32)); }
INFERX_SAMPLING int64_t order_id(uint64_t order) { return static_cast<uint32_t>(order); }

INFERX_SAMPLING void multiply_wide(uint64_t a, uint64_t b, uint64_t& high, uint64_t& low) {
  const uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
  const uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  const uint64_t middle2 = a0 * b1 + (middle & 0xffffffffu);
  high = a1 * b1 + (middle >> 32) + (middle2 >> 32);
  low = a * b;
}

// floor(bits / 2^64 * total): a uniform integer in [0, total).
INFERX_SAMPLING int64_t draw_target(uint64_t bits, int64_t total) {
  uint64_t high, low;
  multiply_wide(bits, static_cast<uint64_t>(total), high, low);
  return static_cast<int64_t>(high);
}

// top_p within [0, 1]: what is negative keeps the first token alone, what is not below 1 (NaN too) is off.
INFERX_SAMPLING double clamp_top_p(double top_p) { return top_p < 1 ? (top_p > 0 ? top_p : 0.0) : 1.0; }

// ceil(top_p * total), exactly, and at least 1; for top_p < 1.
INFERX_SAMPLING int64_t mass_limit(double top_p, int64_t total) {
  if (!(top_p > 0)) return 1;
  uint64_t bits;
  memcpy(&bits, &top_p, sizeof bits);
  const int exponent = static_cast<int>(bits >> 52);
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  const uint64_t mantissa = exponent ? fraction | uint64_t{1} << 52 : fraction;
  const int shift = 1075 - (exponent ? exponent : 1);  // top_p = mantissa / 2^shift, shift > 52
  uint64_t high, low;
  multiply_wide(mantissa, static_cast<uint64_t>(total), high, low);
  if (shift >= 128) return 1;
  uint64_t quotient, rest;
  if (shift >= 64) {
    quotient = shift == 64 ? high : high >> (shift - 64);
    rest = low | (high & ((uint64_t{1} << (shift - 64)) - 1));
  } else {
    quotient = high << (64 - shift) | low >> shift;
    rest = low & ((uint64_t{1} << shift) - 1);
  }
  quotient += rest != 0;
  return quotient > 0 ? static_cast<int64_t>(quotient) : 1;
}

// ceil(min_p * 2^42), at least 1: the least weight that stays.
INFERX_SAMPLING int64_t least_weight(double min_p) {
  if (!(min_p > 0)) return 1;
  if (min_p >= 1) return kOne;
  const double scaled = min_p * static_cast<double>(kOne);  // exact
  const int64_t floor = static_cast<int64_t>(scaled);
  return floor + (static_cast<double>(floor) < scaled || floor == 0);
}

// Ten rounds of Philox4x32 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers, SC 2011) of the counter
// (step, index, 0) under the key `seed`; the first two words of the answer.
INFERX_SAMPLING uint64_t token_bits(uint64_t seed, uint64_t step, uint32_t index) {
  uint32_t c0 = static_cast<uint32_t>(step), c1 = static_cast<uint32_t>(step >> 32), c2 = index, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return static_cast<uint64_t>(c1) << 32 | c0;
}

// log(total / 2^42) for a positive total, about 1 ulp: total = f 2^e with sqrt(1/2) <= f < sqrt(2), and
// log f = 2 artanh((f - 1) / (f + 1)) by its series, |s| <= 0.172.
INFERX_SAMPLING double log_of_total(int64_t total) {
  double f = static_cast<double>(total);
  uint64_t bits;
  memcpy(&bits, &f, sizeof bits);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & ((uint64_t{1} << 52) - 1)) | uint64_t{1023} << 52;
  memcpy(&f, &bits, sizeof f);
  if (f > 1.4142135623730951) {
    f *= 0.5;
    ++exponent;
  }
  const double s = (f - 1.0) / (f + 1.0), s2 = s * s;
  double sum = 0.0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * s2 + 1.0 / k;
  return (exponent - kWeightBits) * 0.6931471805599453 + 2.0 * s * sum;
}

// A logit whose token was seen (count times in the output): repetition penalty as in CTRL (Keskar et al.,
// 2019), then frequency and presence as OpenAI has them.
INFERX_SAMPLING float penalised(float x, int32_t count, float repetition, float frequency, float presence) {
  x = x > 0 ? x / repetition : x * repetition;
  return x - (frequency * static_cast<float>(count) + (count > 0 ? presence : 0.0f));
}

// The log-probability of a token of logit x in a row of maximum `max` and weights that sum to `total`.
INFERX_SAMPLING double logprob_of(float x, float max, int64_t total) {
  if (bits_of(max) == 0x7f800000u) return x == max ? 0.0 : -static_cast<double>(max);  // +inf is certain
  return static_cast<double>(x) - (static_cast<double>(max) + log_of_total(total));
}

}  // namespace inferx::sampling
