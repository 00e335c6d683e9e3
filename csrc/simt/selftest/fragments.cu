// Probes of ldmatrix, stmatrix, mma.sync and the fp8 conversions: one warp, raw registers in and out, so that
// a test can compare with the PTX ISA's figures, and the executor with a GPU.
#include "simt/selftest/selftest.h"

namespace {

using namespace simt;

// rows [32][8] elements; where[lane]: the row that the lane points at.  out [32][4] registers.
template <int X, bool Transposed>
__global__ void ldmatrix_kernel(const uint4* rows, const int* where, uint32_t* out) {
  SHARED(uint4, tile, [32]);
  const int lane = threadIdx.x;
  tile[lane] = rows[lane];
  __syncwarp();
  uint32_t r[X];
  const void* row = &tile[where[lane]];
  if constexpr (X == 1) Transposed ? ldmatrix_x1_trans(r, row) : ldmatrix_x1(r, row);
  if constexpr (X == 2) Transposed ? ldmatrix_x2_trans(r, row) : ldmatrix_x2(r, row);
  if constexpr (X == 4) Transposed ? ldmatrix_x4_trans(r, row) : ldmatrix_x4(r, row);
  for (int i = 0; i < X; ++i) out[lane * 4 + i] = r[i];
}
SELFTEST(ldmatrix) {
  const auto go = [&](auto kernel) {
    return test.launch(kernel, test.in<uint4>(0), test.in<int>(1), test.out<uint32_t>(0));
  };
  const bool transposed = test.number(1) != 0;
  if (test.number(0) == 1) return transposed ? go(ldmatrix_kernel<1, true>) : go(ldmatrix_kernel<1, false>);
  if (test.number(0) == 2) return transposed ? go(ldmatrix_kernel<2, true>) : go(ldmatrix_kernel<2, false>);
  return transposed ? go(ldmatrix_kernel<4, true>) : go(ldmatrix_kernel<4, false>);
}

// regs [32][4]; out rows [32][8], zeros where nothing is stored.
template <int X, bool Transposed>
__global__ void stmatrix_kernel(const uint32_t* regs, const int* where, uint4* out) {
  SHARED(uint4, tile, [32]);
  const int lane = threadIdx.x;
  tile[lane] = uint4{0, 0, 0, 0};
  uint32_t r[X];
  for (int i = 0; i < X; ++i) r[i] = regs[lane * 4 + i];
  void* row = &tile[where[lane]];
  __syncwarp();
  if constexpr (X == 1) Transposed ? stmatrix_x1_trans(row, r) : stmatrix_x1(row, r);
  if constexpr (X == 2) Transposed ? stmatrix_x2_trans(row, r) : stmatrix_x2(row, r);
  if constexpr (X == 4) Transposed ? stmatrix_x4_trans(row, r) : stmatrix_x4(row, r);
  __syncwarp();
  out[lane] = tile[lane];
}
SELFTEST(stmatrix) {
  const auto go = [&](auto kernel) {
    return test.launch(kernel, test.in<uint32_t>(0), test.in<int>(1), test.out<uint4>(0));
  };
  const bool transposed = test.number(1) != 0;
  if (test.number(0) == 1) return transposed ? go(stmatrix_kernel<1, true>) : go(stmatrix_kernel<1, false>);
  if (test.number(0) == 2) return transposed ? go(stmatrix_kernel<2, true>) : go(stmatrix_kernel<2, false>);
  return transposed ? go(stmatrix_kernel<4, true>) : go(stmatrix_kernel<4, false>);
}

enum Kind { kBf16, kF16, kE4m3, kE5m2, kS8, kTf32 };

// a [32][4], b [32][4], c and d [32][8]: registers; one product, or with n16 two.
template <int Type>
__global__ void mma_kernel(const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d, int n16) {
  using T = std::conditional_t<Type == kS8, int, float>;
  const int lane = lane_id();
  uint32_t ra[4], rb[4];
  T d0[4], d1[4];
  for (int i = 0; i < 4; ++i) {
    ra[i] = a[lane * 4 + i];
    rb[i] = b[lane * 4 + i];
    d0[i] = bit_cast<T>(c[lane * 8 + i]);
    d1[i] = bit_cast<T>(c[lane * 8 + 4 + i]);
  }
  if (n16 != 0) {
    if constexpr (Type == kBf16) mma_bf16_n16(d0, d1, ra, rb);
    if constexpr (Type == kF16) mma_f16_n16(d0, d1, ra, rb);
    if constexpr (Type == kE4m3) mma_e4m3_n16(d0, d1, ra, rb);
    if constexpr (Type == kS8) mma_s8_n16(d0, d1, ra, rb);
  } else {
    if constexpr (Type == kBf16) mma_bf16(d0, ra, rb[0], rb[1]);
    if constexpr (Type == kF16) mma_f16(d0, ra, rb[0], rb[1]);
    if constexpr (Type == kE4m3) mma_e4m3(d0, ra, rb[0], rb[1]);
    if constexpr (Type == kE5m2) mma_e5m2(d0, ra, rb[0], rb[1]);
    if constexpr (Type == kS8) mma_s8(d0, ra, rb[0], rb[1]);
    if constexpr (Type == kTf32) mma_tf32(d0, ra, rb[0], rb[1]);
  }
  for (int i = 0; i < 4; ++i) {
    d[lane * 8 + i] = bit_cast<uint32_t>(d0[i]);
    d[lane * 8 + 4 + i] = bit_cast<uint32_t>(d1[i]);
  }
}
SELFTEST(mma) {
  const auto go = [&](auto kernel) {
    return test.launch(kernel, test.in<uint32_t>(0), test.in<uint32_t>(1), test.in<uint32_t>(2),
                       test.out<uint32_t>(0), static_cast<int>(test.number(1)));
  };
  switch (test.number(0)) {
    case kBf16:
      return go(mma_kernel<kBf16>);
    case kF16:
      return go(mma_kernel<kF16>);
    case kE4m3:
      return go(mma_kernel<kE4m3>);
    case kE5m2:
      return go(mma_kernel<kE5m2>);
    case kS8:
      return go(mma_kernel<kS8>);
    default:
      return go(mma_kernel<kTf32>);
  }
}

// A lane that does not come to a collective; a row that is not 16-byte aligned.
__global__ void bad_fragments_kernel(uint32_t* out, int bug) {
  SHARED(uint4, tile, [33]);
  const int lane = threadIdx.x;
  tile[lane] = uint4{0, 0, 0, 0};
  if (lane == 0) tile[32] = uint4{0, 0, 0, 0};
  __syncwarp();
  const unsigned char* row = reinterpret_cast<const unsigned char*>(&tile[lane]);
  uint32_t r[4] = {};
  if (bug == 1) ldmatrix_x4(r, row + 8);
  if (bug == 2) ldmatrix_x4(r, row + 32);  // the last lanes' rows lie beyond the tile
  if (bug == 3) {                          // legal: only eight pointers are used
    uint32_t one[1];
    ldmatrix_x1(one, lane < 8 ? row : nullptr);
    r[0] = one[0];
  }
  if (bug == 4 && lane != 5) ldmatrix_x4(r, row);
  if (bug == 5 && lane != 5) {
    float d[4] = {};
    mma_bf16(d, r, 0, 0);
  }
  out[lane] = r[0];
}
SELFTEST(bad_fragments) {
  return test.launch(bad_fragments_kernel, test.out<uint32_t>(0), static_cast<int>(test.number(0)));
}

// in: pairs of e4m3; out: the same as f16x2, f16x2 by bits, bf16x2; and e5m2 pairs as f16x2.
__global__ void fp8_widen_kernel(const uint16_t* in, uint32_t* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  out[i] = e4m3x2_to_f16x2(in[i]);
  out[n + i] = e4m3x2_to_f16x2_bits(in[i]);
  out[2 * n + i] = e4m3x2_to_bf16x2(in[i]);
  out[3 * n + i] = e5m2x2_to_f16x2(in[i]);
  uint32_t two[2];
  e4m3x4_to_f16x4(two, in[i] | static_cast<uint32_t>(in[n - 1 - i]) << 16);
  out[4 * n + i] = two[1];
  e4m3x4_to_bf16x4(two, in[i] | static_cast<uint32_t>(in[n - 1 - i]) << 16);
  out[5 * n + i] = two[1];
}
SELFTEST(fp8_widen) {
  return test.launch(fp8_widen_kernel, test.in<uint16_t>(0), test.out<uint32_t>(0),
                     static_cast<int>(test.number(0)));
}

// in: floats [n][4]; out: e4m3 [n][4], and of those as f16 pairs the e4m3; and e5m2 of the first two.
__global__ void fp8_narrow_kernel(const float* in, uint32_t* out, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  const float* x = in + 4 * i;
  out[i] = f32x4_to_e4m3x4(x[0], x[1], x[2], x[3]);
  out[n + i] = f16x2_to_e4m3x2(pack_f16(x[0], x[1])) |
               static_cast<uint32_t>(f16x2_to_e4m3x2(pack_f16(x[2], x[3]))) << 16;
  out[2 * n + i] = f32x2_to_e5m2x2(x[0], x[1]) | static_cast<uint32_t>(f32x2_to_e5m2x2(x[2], x[3])) << 16;
}
SELFTEST(fp8_narrow) {
  return test.launch(fp8_narrow_kernel, test.in<float>(0), test.out<uint32_t>(0),
                     static_cast<int>(test.number(0)));
}

}  // namespace
