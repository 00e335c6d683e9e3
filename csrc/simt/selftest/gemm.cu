// A whole pipeline as kernels use it: C[M, N] = A[M, K] B by a producer warp that loads tensor tiles into a
// ring, and a consumer warpgroup that multiplies them by wgmma.  `Bug` breaks one rule; 0 is the legal
// kernel.
#include "simt/selftest/selftest.h"

namespace {

using namespace simt;

constexpr int kM = 64, kStages = 3, kRowBytes = 128;  // a tile of K is one swizzle span

enum Bug {
  kLegal,
  kNoSyncAfterInit,
  kNoFenceInit,
  kNoFullWait,
  kNoEmptyWait,
  kExpectTooMany,
  kExpectTooFew,
  kNoWgmmaWait,
  kArriveBeforeWait,
  kWrongParity,
  kOneArrivalLess,
  kDoubleInit,
};

template <class T>
struct Traits;
template <>
struct Traits<bf16> {
  using Sum = float;
  template <int N, int TB, class A>
  static SIMT_DEV void product(float (&d)[N / 2], const A& a, uint64_t b, int accumulate SIMT_ATP) {
    wgmma_bf16<N, TB>(d, a, b, accumulate SIMT_PASS);
  }
};
template <>
struct Traits<f16> {
  using Sum = float;
  template <int N, int TB, class A>
  static SIMT_DEV void product(float (&d)[N / 2], const A& a, uint64_t b, int accumulate SIMT_ATP) {
    wgmma_f16<N, TB>(d, a, b, accumulate SIMT_PASS);
  }
};
template <>
struct Traits<e4m3> {
  using Sum = float;
  template <int N, int TB, class A>
  static SIMT_DEV void product(float (&d)[N / 2], const A& a, uint64_t b, int accumulate SIMT_ATP) {
    wgmma_e4m3<N>(d, a, b, accumulate SIMT_PASS);
  }
};
template <>
struct Traits<int8_t> {
  using Sum = int;
  template <int N, int TB, class A>
  static SIMT_DEV void product(int (&d)[N / 2], const A& a, uint64_t b, int accumulate SIMT_ATP) {
    wgmma_s8<N>(d, a, b, accumulate SIMT_PASS);
  }
};

// A is K-major; B is [N, K] (TB = 0) or [K, N] (TB = 1: 16-bit types, and two spans of 64 columns).
template <class T, int N, int TB, bool AInRegisters, int Bug>
__global__ void __launch_bounds__(160)
    gemm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
                typename Traits<T>::Sum* __restrict__ c, int M, int cols, int K) {
#ifdef SIMT_SM90A
  constexpr int kK = kRowBytes / static_cast<int>(sizeof(T)), kBytesA = kM * kRowBytes,
                kBytesB = N * kRowBytes;
  constexpr int kStage = kBytesA + kBytesB, kSpans = TB ? N / 64 : 1;
  DYN_SHARED(smem, 1024);
  SHARED(uint64_t, full, [kStages]);
  SHARED(uint64_t, empty, [kStages]);
  const int warp = threadIdx.x / 32, lane = lane_id();
  const int m0 = blockIdx.y * kM, n0 = blockIdx.x * N, steps = ceil_div(K, kK);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      mbar_init(&full[s], 1);
      mbar_init(&empty[s], Bug == kOneArrivalLess ? 5 : 4);  // one arrival a consumer warp
      if (Bug == kDoubleInit && s == 1) mbar_init(&full[s], 1);
    }
    if (Bug != kNoFenceInit) mbar_fence_init();
  }
  if (Bug != kNoSyncAfterInit) __syncthreads();

  if (warp == 4) {  // producer
    if (lane == 0) {
      for (int i = 0; i < steps; ++i) {
        const int s = i % kStages, parity = i / kStages & 1;
        unsigned char* stage = smem + s * kStage;
        if (Bug != kNoEmptyWait) mbar_wait(&empty[s], Bug == kWrongParity ? parity : parity ^ 1);
        mbar_arrive_expect_tx(&full[s], kStage + (Bug == kExpectTooMany  ? 16
                                                  : Bug == kExpectTooFew ? -16
                                                                         : 0));
        tma_load_2d(stage, &map_a, &full[s], i * kK, m0);
        for (int span = 0; span < kSpans; ++span) {
          if (TB) {
            tma_load_2d(stage + kBytesA + span * kK * kRowBytes, &map_b, &full[s], n0 + span * 64, i * kK);
          } else {
            tma_load_2d(stage + kBytesA, &map_b, &full[s], i * kK, n0);
          }
        }
      }
    }
    return;
  }

  typename Traits<T>::Sum d[N / 2];
  for (int i = 0; i < steps; ++i) {
    const int s = i % kStages, parity = i / kStages & 1;
    const unsigned char *a = smem + s * kStage, *b = a + kBytesA;
    if (Bug != kNoFullWait) mbar_wait(&full[s], parity);
    uint32_t regs[4][4];
    if constexpr (AInRegisters) {
      for (int k = 0; k < 4; ++k) {
        const int row = warp * 16 + lane % 16, column = k * 32 + lane / 16 * 16;
        ldmatrix_x4(regs[k], a + swizzled<Swizzle::b128>(static_cast<uint32_t>(row * kRowBytes + column)));
      }
    }
    wgmma_pin(d);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint64_t db;
      if constexpr (TB) {
        db = smem_desc_n_major<Swizzle::b128>(b + k * 16 * kRowBytes, kK * kRowBytes);
      } else {
        db = smem_desc_k_major<Swizzle::b128>(b + k * 32);
      }
      if constexpr (AInRegisters) {
        Traits<T>::template product<N, TB>(d, regs[k], db, i > 0 || k > 0);
      } else {
        Traits<T>::template product<N, TB>(d, smem_desc_k_major<Swizzle::b128>(a + k * 32), db,
                                           i > 0 || k > 0);
      }
    }
    wgmma_commit();
    if (Bug == kArriveBeforeWait) {
      __syncwarp();
      if (lane == 0) mbar_arrive(&empty[s]);
    }
    if (Bug != kNoWgmmaWait) wgmma_wait<0>();
    wgmma_pin(d);
    if (Bug != kArriveBeforeWait) {
      if (AInRegisters) __syncwarp();  // all lanes' ldmatrix are done
      if (lane == 3) mbar_arrive(&empty[s]);
    }
  }
  for (int j = 0; j < N / 8; ++j) {
    for (int e = 0; e < 4; ++e) {
      const int row = m0 + warp * 16 + lane / 4 + e / 2 * 8, col = n0 + j * 8 + lane % 4 * 2 + e % 2;
      if (row < M && col < cols) c[static_cast<int64_t>(row) * cols + col] = d[j * 4 + e];
    }
  }
#endif
}

// numbers: M, N, K, mode, bug.  in: A [M, K], B [N, K] or [K, N]; rows are multiples of 16 bytes.
template <class T, int N, int TB, bool AInRegisters, int Bug>
int run(const simt::selftest::Test& test) {
  constexpr int kK = kRowBytes / static_cast<int>(sizeof(T));
  const auto M = static_cast<uint64_t>(test.number(0)), cols = static_cast<uint64_t>(test.number(1)),
             K = static_cast<uint64_t>(test.number(2));
  CUtensorMap map_a, map_b;
  const int bytes = static_cast<int>(sizeof(T));
  int error =
      make_tensor_map(&map_a, {test.in<void>(0), bytes, 2, {K, M}, {K * sizeof(T)}, {kK, kM}, Swizzle::b128});
  if (error != 0) return error;
  const TensorMapSpec b =
      TB ? TensorMapSpec{test.in<void>(1), bytes, 2, {cols, K}, {cols * sizeof(T)}, {64, kK}, Swizzle::b128}
         : TensorMapSpec{test.in<void>(1), bytes, 2, {K, cols}, {K * sizeof(T)}, {kK, N}, Swizzle::b128};
  error = make_tensor_map(&map_b, b);
  if (error != 0) return error;
  const dim3 grid(static_cast<unsigned>((cols + N - 1) / N), static_cast<unsigned>((M + kM - 1) / kM));
  return launch(gemm_kernel<T, N, TB, AInRegisters, Bug>, grid, dim3(160), kStages * (kM + N) * kRowBytes,
                test.stream, map_a, map_b, test.out<typename Traits<T>::Sum>(0), static_cast<int>(M),
                static_cast<int>(cols), static_cast<int>(K));
}

template <int... Bugs>
int run_bug(const simt::selftest::Test& test, std::integer_sequence<int, Bugs...>) {
  int result = -1;
  ((test.number(4) == Bugs ? static_cast<void>(result = run<bf16, 64, 0, false, Bugs>(test))
                           : static_cast<void>(0)),
   ...);
  return result;
}

SELFTEST(gemm) {
  if (test.number(4) != 0) return run_bug(test, std::make_integer_sequence<int, kDoubleInit + 1>{});
  switch (test.number(3)) {
    case 0:
      return run<bf16, 64, 0, false, 0>(test);
    case 1:
      return run<bf16, 128, 0, true, 0>(test);
    case 2:
      return run<bf16, 128, 1, false, 0>(test);
    case 3:
      return run<bf16, 64, 1, true, 0>(test);
    case 4:
      return run<f16, 96, 0, false, 0>(test);
    case 5:
      return run<f16, 64, 1, true, 0>(test);
    case 6:
      return run<e4m3, 64, 0, false, 0>(test);
    case 7:
      return run<e4m3, 128, 0, true, 0>(test);
    case 8:
      return run<int8_t, 64, 0, false, 0>(test);
    case 9:
      return run<int8_t, 128, 0, true, 0>(test);
    default:
      return -1;
  }
}

}  // namespace
