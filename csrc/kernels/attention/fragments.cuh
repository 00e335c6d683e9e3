// The two products of attention on mma.m16n8k16, from tiles in shared memory: S = Q K^T and O += P V.
//
// A 16-bit cache is multiplied as it is.  An e4m3 cache is converted in registers to f16, which holds it
// exactly (8 bits would be too few for the weights, and bf16 costs more conversions); ldmatrix moves pairs of
// bytes then, so the order of the elements of head_dim differs:
//   K: a lane gets d 4t .. 4t+3 of a key (t = lane % 4), which stand in for 2t, 2t+1, 2t+8, 2t+9 of a k16
//   step.
//      Q's fragments are read in the same order, which leaves the sum over d as it is.
//   V: a lane gets d 2r and 2r+1 (r = lane / 4) of two keys; they are sorted into two fragments, one for the
//   even
//      and one for the odd of 16 columns.  output_column() says where an accumulator belongs.
#pragma once
#include <type_traits>

#include "kernels/attention/kv_tile.cuh"
#include "kernels/dtype_dispatch.h"
#include "simt/simt.h"

namespace inferx::cuda {

using namespace simt;

// ---- instructions ----------------------------------------------------------------------------------------

SIMT_DEV uint32_t pack_pair(float low, float high, __nv_bfloat16) { return pack_bf16(low, high); }
SIMT_DEV uint32_t pack_pair(float low, float high, __half) {
  const __half2 pair = __floats2half2_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, 4);
  return bits;
}

// D0, D1 [16, 8] += A [16, 16] B [16, 16]
SIMT_DEV void mma_n16(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                      __nv_bfloat16) {
  mma_bf16_n16(d0, d1, a, b);
}
SIMT_DEV void mma_n16(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4], const uint32_t (&b)[4],
                      __half) {
  mma_f16(d0, a, b[0], b[1]);
  mma_f16(d1, a, b[2], b[3]);
}

// Bytes 0, 2 and 1, 3 of a register in its halves.
SIMT_DEV uint32_t even_odd_bytes(uint32_t x) {
#ifdef __CUDA_ARCH__
  return __byte_perm(x, 0, 0x3120);
#else
  return (x & 0xff0000ffu) | (x >> 8 & 0xff00u) | (x << 8 & 0xff0000u);
#endif
}

// Two e4m3 (the low 16 bits) as two f16, exactly.
SIMT_DEV uint32_t e4m3_to_f16(uint32_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(x), __NV_E4M3);
  return static_cast<uint32_t>(pair.y) << 16 | pair.x;
#else
  // sign, 4 bits of exponent, 3 of mantissa go where f16 has them; the biases differ by 8.
  const uint32_t spread = (x & 0xffu) << 8 | (x & 0xff00u) << 16;
  const uint32_t magnitude = spread >> 1 & 0x3f803f80u;
  uint32_t bits = magnitude | (spread & 0x80008000u);
  const uint32_t nan = (magnitude + 0x00800080u) >> 14 & 0x00010001u;  // all ones but the sign
  __half2 pair;
  memcpy(static_cast<void*>(&pair), &bits, 4);
  pair = __hmul2(pair, __float2half2_rn(256.0f));
  memcpy(&bits, &pair, 4);
  return bits | nan * 0x7e00u;
#endif
}

// ---- Q ---------------------------------------------------------------------------------------------------

// What is multiplied: the cache's own 16-bit type, or f16.
template <class Cache, class T>
using Compute = std::conditional_t<sizeof(Cache) == 1, __half, T>;

SIMT_DEV float2 unpack_pair(uint32_t bits, __nv_bfloat16) {
  return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
}
SIMT_DEV float2 unpack_pair(uint32_t bits, __half) {
  __half2 pair;
  memcpy(static_cast<void*>(&pair), &bits, 4);
  return {__low2float(pair), __high2float(pair)};
}

// The power of two that brings `largest` to 2^14 .. 2^15, and its inverse.
SIMT_DEV void find_power(float largest, float& power, float& inverse) {
  const uint32_t bits = __float_as_uint(largest) >> 23, exponent = bits < 15 ? 15 : bits;
  power = __uint_as_float((127 + 14 + 127 - exponent) << 23);
  inverse = __uint_as_float((exponent - 14) << 23);
}

// A fragments of two query rows a lane (row = lane / 4, and 8 further), read from global memory; null: zeros.
// Where a cache of e4m3 asks for f16, a row is first multiplied by a power of two that brings its largest
// element to 2^14 .. 2^15: bf16's range would not fit, and this loses nothing that matters beside that
// element.
template <class Cache, class T>
struct QueryRows {
  static constexpr bool kScaled = sizeof(Cache) == 1;
  const T* row[2];
  int head_dim;
  float power[2] = {1, 1};    // multiplied into the row
  float inverse[2] = {1, 1};  // what the scores have to be multiplied with

  // The pairs of k16 step `k` that this lane holds of a row: ranks 2t, 2t+1 and 2t+8, 2t+9.
  SIMT_DEV uint2 pairs(int r, int k) const {
    const int t = lane_id() % 4;
    if constexpr (kScaled) {
      const int d = k * 16 + t * 4;
      if (row[r] == nullptr || d >= head_dim) return {0, 0};
      return *reinterpret_cast<const uint2*>(row[r] + d);
    } else {
      const int d = k * 16 + t * 2;
      if (row[r] == nullptr || d >= head_dim) return {0, 0};
      return {*reinterpret_cast<const uint32_t*>(row[r] + d),
              d + 8 < head_dim ? *reinterpret_cast<const uint32_t*>(row[r] + d + 8) : 0u};
    }
  }

  // Finds the powers of two.  All lanes must call.
  template <int D>
  SIMT_DEV void measure() {
    if constexpr (kScaled) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float largest = 0;
#pragma unroll
        for (int k = 0; k < D / 16; ++k) {
          const uint2 both = pairs(r, k);
          const float2 a = unpack_pair(both.x, T{}), b = unpack_pair(both.y, T{});
          largest = fmaxf(fmaxf(fmaxf(fabsf(a.x), fabsf(a.y)), fmaxf(fabsf(b.x), fabsf(b.y))), largest);
        }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        find_power(largest, power[r], inverse[r]);
      }
    }
  }

  SIMT_DEV void load(uint32_t (&a)[4], int k) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint2 both = pairs(r, k);
      if constexpr (kScaled) {
        const float2 low = unpack_pair(both.x, T{}), high = unpack_pair(both.y, T{});
        a[r] = pack_pair(low.x * power[r], low.y * power[r], __half{});
        a[r + 2] = pack_pair(high.x * power[r], high.y * power[r], __half{});
      } else {
        a[r] = both.x;
        a[r + 2] = both.y;
      }
    }
  }
};

// ---- S = Q K^T -------------------------------------------------------------------------------------------

// One ldmatrix.x4 brings K's fragments of so many k16 steps, or V's of so many times 16 columns.
template <class Cache>
constexpr int kStepsAtOnce = 2 / static_cast<int>(sizeof(Cache));

// b[i]: the B fragment of k16 step k + i of the 16 keys that begin at `keys`.
template <class Cache, int D>
SIMT_DEV void key_fragments(uint32_t (&b)[kStepsAtOnce<Cache>][4], const unsigned char* keys, int k) {
  constexpr int kRow = kRowBytes<Cache, D>;
  const int lane = lane_id();
  if constexpr (sizeof(Cache) == 2) {
    ldmatrix_x4(b[0], keys + (lane % 8 + lane / 16 * 8) * kRow + lane / 8 % 2 * 16 + k * 32);
  } else {
    uint32_t r[4];
    // Lanes 16 to 31 point to the second step; without one, to the first again.
    ldmatrix_x4(r, keys + lane % 16 * kRow + (k + 1 < D / 16 ? k + lane / 16 : k) * 16);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        b[i][2 * j] = e4m3_to_f16(r[2 * i + j] & 0xffffu);
        b[i][2 * j + 1] = e4m3_to_f16(r[2 * i + j] >> 16);
      }
    }
  }
}

// s [16, 16] += the 16 query rows of `query` times the 16 keys that begin at `keys`.  query(a, k) gives the A
// fragment of k16 step k, in the cache's order (QueryRows::load does).
template <class Cache, class C, int D, class Query>
SIMT_DEV void multiply_keys(float (&s)[2][4], const Query& query, const unsigned char* keys) {
  constexpr int kAtOnce = kStepsAtOnce<Cache>;
  // Of a large head_dim the query may come from memory: all fragments at once would not fit the registers.
  [[maybe_unused]] constexpr int kUnroll = D > 128 ? 4 / kAtOnce : D / 16;
#pragma unroll kUnroll
  for (int k = 0; k < D / 16; k += kAtOnce) {
    uint32_t b[kAtOnce][4];
    key_fragments<Cache, D>(b, keys, k);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (k + i >= D / 16) continue;
      uint32_t a[4];
      query(a, k + i);
      mma_n16(s[0], s[1], a, b[i], C{});
    }
  }
}

// ---- O += P V --------------------------------------------------------------------------------------------

// The A fragment of 16 keys' weights from their scores' accumulators.
template <class C>
SIMT_DEV void weight_fragment(uint32_t (&p)[4], const float (&first)[4], const float (&second)[4]) {
  p[0] = pack_pair(first[0], first[1], C{});
  p[1] = pack_pair(first[2], first[3], C{});
  p[2] = pack_pair(second[0], second[1], C{});
  p[3] = pack_pair(second[2], second[3], C{});
}

// b[i]: the B fragment of columns 16 (j + i) to 16 (j + i) + 15 of the 16 keys whose values begin at
// `values`.
template <class Cache, int D>
SIMT_DEV void value_fragments(uint32_t (&b)[kStepsAtOnce<Cache>][4], const unsigned char* values, int j) {
  const int lane = lane_id();
  const unsigned char* from = values + lane % 16 * kRowBytes<Cache, D>;
  if constexpr (sizeof(Cache) == 2) {
    ldmatrix_x4_trans(b[0], from + (2 * j + lane / 16) * 16);
  } else {
    uint32_t r[4];
    ldmatrix_x4_trans(r, from + (j + 1 < D / 16 ? j + lane / 16 : j) * 16);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t first = even_odd_bytes(r[2 * i]), second = even_odd_bytes(r[2 * i + 1]);
      b[i][0] = e4m3_to_f16(first & 0xffffu);
      b[i][1] = e4m3_to_f16(second & 0xffffu);
      b[i][2] = e4m3_to_f16(first >> 16);
      b[i][3] = e4m3_to_f16(second >> 16);
    }
  }
}

// out [16, D] += the weights of 16 keys times their values, which begin at `values`.
template <class Cache, class C, int D>
SIMT_DEV void multiply_values(float (&out)[D / 8][4], const uint32_t (&p)[4], const unsigned char* values) {
  constexpr int kAtOnce = kStepsAtOnce<Cache>;
#pragma unroll
  for (int j = 0; j < D / 16; j += kAtOnce) {
    uint32_t b[kAtOnce][4];
    value_fragments<Cache, D>(b, values, j);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (j + i < D / 16) mma_n16(out[2 * (j + i)], out[2 * (j + i) + 1], p, b[i], C{});
    }
  }
}

// The column of head_dim that out[j][e] holds; the row is lane / 4 + e / 2 * 8.
template <class Cache>
SIMT_DEV int output_column(int j, int e) {
  const int t = lane_id() % 4;
  return sizeof(Cache) == 2 ? j * 8 + t * 2 + e % 2 : j / 2 * 16 + t * 4 + e % 2 * 2 + j % 2;
}

}  // namespace inferx::cuda
