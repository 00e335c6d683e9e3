// Probes of wgmma: operands as raw bytes of shared memory with descriptors given by the test, one warpgroup.
#include "simt/selftest/selftest.h"

namespace {

using namespace simt;

enum Kind { kBf16, kF16, kE4m3, kS8 };

struct Probe {
  int bytes;                             // of the image
  int a_start, a_lbo, a_sbo, a_swizzle;  // descriptor of A; a_start < 0: A comes in registers
  int b_start, b_lbo, b_sbo, b_swizzle;
  int steps, a_step, b_step;  // products in a row, the operands so many bytes further on each time
  int accumulate;             // the first product adds to c
  int bug;
};

template <int Type, int N, int TB, class A>
SIMT_DEV void product(std::conditional_t<Type == kS8, int, float> (&d)[N / 2], const A& a, uint64_t db,
                      int accumulate SIMT_ATP) {
  if constexpr (Type == kBf16) wgmma_bf16<N, TB>(d, a, db, accumulate SIMT_PASS);
  if constexpr (Type == kF16) wgmma_f16<N, TB>(d, a, db, accumulate SIMT_PASS);
  if constexpr (Type == kE4m3) wgmma_e4m3<N>(d, a, db, accumulate SIMT_PASS);
  if constexpr (Type == kS8) wgmma_s8<N>(d, a, db, accumulate SIMT_PASS);
}

// image: what lies in shared memory; a_regs [steps][128][4]; c and out [128][N/2].
template <int Type, int N, int TB, bool InRegisters>
__global__ void __launch_bounds__(128)
    wgmma_kernel(const uint4* image, const uint32_t* a_regs, const uint32_t* c, uint32_t* out, Probe p) {
  DYN_SHARED(smem, 1024);
  const int t = threadIdx.x;
  std::conditional_t<Type == kS8, int, float> d[N / 2];
  for (int i = t; i < p.bytes / 16; i += 128) st16(smem + i * 16, ld16(image + i));
  for (int i = 0; i < N / 2; ++i) memcpy(&d[i], &c[t * (N / 2) + i], 4);
  if (p.bug != 1) fence_proxy_async();
  __syncthreads();
  for (int s = 0; s < p.steps; ++s) {
    const uint64_t db = smem_desc(smem + p.b_start + s * p.b_step, p.b_lbo, p.b_sbo, p.b_swizzle) |
                        static_cast<uint64_t>(p.bug == 5) << 49;
    const int accumulate = p.accumulate != 0 || s > 0;
    if constexpr (InRegisters) {
      uint32_t a[4];
      for (int i = 0; i < 4; ++i) a[i] = a_regs[(s * 128 + t) * 4 + i];
      wgmma_pin(d);
      wgmma_fence();
      product<Type, N, TB>(d, a, db, accumulate);
      wgmma_commit();
      wgmma_wait<0>();
    } else {
      wgmma_pin(d);
      wgmma_fence();
      const uint64_t da = smem_desc(smem + p.a_start + s * p.a_step, p.a_lbo, p.a_sbo, p.a_swizzle);
      product<Type, N, TB>(d, da, db, accumulate);
      wgmma_commit();
      wgmma_wait<0>();
    }
    wgmma_pin(d);
  }
  for (int i = 0; i < N / 2; ++i) memcpy(&out[t * (N / 2) + i], &d[i], 4);
}

Probe probe_of(const simt::selftest::Test& test) {
  const auto n = [&](size_t i) { return static_cast<int>(test.number(4 + i)); };
  return {n(0), n(1), n(2), n(3), n(4), n(5), n(6), n(7), n(8), n(9), n(10), n(11), n(12), n(13)};
}

template <int Type, int N, int TB>
int run(const simt::selftest::Test& test) {
  const auto go = [&](auto kernel) {
    return test.launch(kernel, test.in<uint4>(0), test.in<uint32_t>(1), test.in<uint32_t>(2),
                       test.out<uint32_t>(0), probe_of(test));
  };
  return test.number(3) != 0 ? go(wgmma_kernel<Type, N, TB, true>) : go(wgmma_kernel<Type, N, TB, false>);
}

// numbers: type, N, TB, A in registers, then Probe
SELFTEST(wgmma) {
  const auto type = test.number(0), n = test.number(1), tb = test.number(2);
  if (type == kBf16 && tb == 0) {
    switch (n) {
      case 8:
        return run<kBf16, 8, 0>(test);
      case 16:
        return run<kBf16, 16, 0>(test);
      case 32:
        return run<kBf16, 32, 0>(test);
      case 64:
        return run<kBf16, 64, 0>(test);
      case 96:
        return run<kBf16, 96, 0>(test);
      case 128:
        return run<kBf16, 128, 0>(test);
      case 160:
        return run<kBf16, 160, 0>(test);
      case 192:
        return run<kBf16, 192, 0>(test);
      case 256:
        return run<kBf16, 256, 0>(test);
    }
  }
  if (type == kBf16 && n == 16) return run<kBf16, 16, 1>(test);
  if (type == kBf16 && n == 32) return run<kBf16, 32, 1>(test);
  if (type == kBf16 && n == 64) return run<kBf16, 64, 1>(test);
  if (type == kBf16 && n == 128) return run<kBf16, 128, 1>(test);
  if (type == kF16 && tb == 0) return run<kF16, 96, 0>(test);
  if (type == kF16) return run<kF16, 96, 1>(test);
  if (type == kE4m3 && n == 64) return run<kE4m3, 64, 0>(test);
  if (type == kE4m3 && n == 256) return run<kE4m3, 256, 0>(test);
  if (type == kS8 && n == 32) return run<kS8, 32, 0>(test);
  if (type == kS8 && n == 128) return run<kS8, 128, 0>(test);
  return -1;
}

// Descriptors of the dynamic shared memory, and its address.
__global__ void descriptor_kernel(uint64_t* out) {
  DYN_SHARED(smem, 1024);
  out[0] = smem_u32(smem);
  out[1] = smem_desc(smem, 256, 128, 0);
  out[2] = smem_desc_k_major<Swizzle::b128>(smem);
  out[3] = smem_desc_k_major<Swizzle::b128>(smem + 1024 + 64);
  out[4] = smem_desc_k_major<Swizzle::b64>(smem + 512);
  out[5] = smem_desc_k_major<Swizzle::b32>(smem + 256);
  out[6] = smem_desc_n_major<Swizzle::b128>(smem, 8192);
  out[7] = smem_desc(smem, (1 << 18) - 16, (1 << 18) - 16, 0);
}
SELFTEST(descriptor) { return test.launch(descriptor_kernel, test.out<uint64_t>(0)); }

// What breaks the order of fence, product, commit and wait.  One product of bf16 64x8x16, no swizzle; out
// [128][4].
enum WgmmaBug {
  kLegal,
  kNoFence,
  kNoFenceAfterWait,
  kTouchedAfterFence,
  kReadBeforeWait,
  kWriteBeforeWait,
  kWaitTooFew,
  kNoCommit,
  kNoWait,
  kMisalignedTile,
  kOperandOverwritten,
  kOneWarpLess,
  kWarpsDiffer,
  kLanesDiffer,
  kRegistersOfA,
  kAccumulateDiffers,
  kHalfWarpgroup,
};
template <int Bug>
__global__ void __launch_bounds__(128) wgmma_bug_kernel(float* out) {
#ifdef SIMT_SM90A
  DYN_SHARED(smem, 1024);
  const int t = threadIdx.x, warp = t / 32;
  for (int i = t; i < 512; i += static_cast<int>(blockDim.x))
    st16(smem + i * 16, uint4{0x3F803F80, 0x3F803F80, 0x3F803F80, 0x3F803F80});
  fence_proxy_async();
  __syncthreads();
  float d[4] = {1, 1, 1, 1};
  uint32_t ones[4] = {0x3F803F80, 0x3F803F80, 0x3F803F80, 0x3F803F80};
  uint64_t a = smem_desc(smem, 128, 256, 0), b = smem_desc(smem + 4096, 128, 256, 0);
  if constexpr (Bug == kMisalignedTile) b = smem_desc(smem + 4096 + 128, 16, 1024, 1);
  if constexpr (Bug == kWarpsDiffer) {
    if (warp == 2) b = smem_desc(smem + 4096, 128, 512, 0);
  }
  if constexpr (Bug == kLanesDiffer) {
    if (t == 7) b = smem_desc(smem + 4096, 128, 512, 0);
  }
  if constexpr (Bug != kNoFence) wgmma_fence();
  if constexpr (Bug == kTouchedAfterFence) {
    wgmma_bf16<8>(d, a, b, 1);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence();
    d[1] *= 2;
  }
  if constexpr (Bug == kRegistersOfA) {
    wgmma_bf16<8>(d, ones, b, 1);
    ones[0] = static_cast<uint32_t>(t);
  } else if constexpr (Bug == kOneWarpLess) {
    wgmma_bf16<8>(d, a, b, 1);
    if (warp != 3) wgmma_bf16<8>(d, a, b, 1);
  } else {
    wgmma_bf16<8>(d, a, b, Bug == kAccumulateDiffers ? t != 9 : 1);
  }
  if constexpr (Bug == kWriteBeforeWait) d[2] = 0;
  if constexpr (Bug == kReadBeforeWait) out[t * 4 + 3] = d[3];
  if constexpr (Bug == kOperandOverwritten) st16(smem + 4096 + t * 16, uint4{0, 0, 0, 0});
  if constexpr (Bug != kNoCommit) wgmma_commit();
  if constexpr (Bug == kWaitTooFew) {
    wgmma_wait<1>();
  } else if constexpr (Bug != kNoWait) {
    wgmma_wait<0>();
  }
  if constexpr (Bug == kNoFenceAfterWait) {
    wgmma_bf16<8>(d, a, b, 1);
    wgmma_commit();
    wgmma_wait<0>();
  }
  wgmma_pin(d);
  if constexpr (Bug != kNoWait) {
    for (int i = 0; i < 4; ++i) out[t * 4 + i] = d[i];
  }
  if constexpr (Bug == kRegistersOfA) out[0] = static_cast<float>(ones[0]);
#endif
}
template <int... Bugs>
int run_bug(const simt::selftest::Test& test, std::integer_sequence<int, Bugs...>) {
  int result = -1;
  ((test.number(0) == Bugs
        ? static_cast<void>(result = test.launch(wgmma_bug_kernel<Bugs>, test.out<float>(0)))
        : static_cast<void>(0)),
   ...);
  return result;
}
SELFTEST(wgmma_bug) { return run_bug(test, std::make_integer_sequence<int, kHalfWarpgroup + 1>{}); }

}  // namespace
