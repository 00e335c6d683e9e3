// wgmma (sm_90a): D[64, N] (+)= A[64, K] B[K, N] by a warpgroup, four warps whose first one's number is a
// multiple of 4.
//
// K is 16 for 16-bit types and 32 for 8-bit types.  B lies in shared memory, A there or in registers; both
// are read while the threads go on.  The order is
//     wgmma_fence();  wgmma_*(...) ...;  wgmma_commit();  ...  wgmma_wait<groups still in flight>();
// From the first product until the wait nobody may touch the accumulators or the registers of A, nor write
// the operands in shared memory.  Those that threads have written (not a bulk copy) need fence_proxy_async()
// by the writers.
//
// Accumulators: with w = warp%4, g = lane/4, t = lane%4, d[4j + e] is D[16w + g + 8(e/2)][8j + 2t + e%2].  A
// in registers is laid out as in mma.h, 16 rows a warp.
#pragma once
#include "simt/arch.h"
#include "simt/mma.h"
#include "simt/shared.h"
#include "simt/swizzle.h"
#ifdef SIMT_GPU
#include "simt/wgmma_ptx.h"
#endif

namespace simt {

#ifdef SIMT_CPU
namespace host {
void wgmma_fence(Site at);
void wgmma_commit(Site at);
void wgmma_wait(int groups_left, Site at);
// a: four registers, or null when A is at descriptor da
void wgmma(MmaType type, int n, void* d, const uint32_t* a, uint64_t da, uint64_t db, bool accumulate,
           bool n_major, Site at);
void check_descriptor(uint32_t start, int lbo, int sbo, int swizzle, Site at);
}  // namespace host
#endif

// A descriptor of an operand in shared memory whose first byte is at p (multiple of 16; the tile itself is
// aligned to swizzle_align()).  Strides in bytes, multiples of 16 below 2^18, by layout:
//   K-major, swizzled:     sbo from 8 rows to the next 8; lbo is not used (16)
//   K-major, no swizzle:   sbo the same (a row is 16 bytes); lbo from 16 bytes of K to the next 16
//   N-major, swizzled:     sbo from 8 of K to the next 8; lbo from one span of N to the next
//   N-major, no swizzle:   sbo from 8 of N to the next 8; lbo from 8 of K to the next 8
// swizzle: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes.
SIMT_DEV uint64_t smem_desc(const void* p, int lbo, int sbo, int swizzle SIMT_ATP) {
  const uint32_t start = smem_u32(p SIMT_PASS);
#ifdef SIMT_CPU
  host::check_descriptor(start, lbo, sbo, swizzle, at);
#endif
  return static_cast<uint64_t>((start & 0x3FFFF) >> 4) | static_cast<uint64_t>(lbo >> 4) << 16 |
         static_cast<uint64_t>(sbo >> 4) << 32 | static_cast<uint64_t>(swizzle) << 62;
}

__host__ __device__ constexpr int desc_swizzle(Swizzle s) {
  return s == Swizzle::none ? 0 : 4 - static_cast<int>(s);
}

// Of a K-major tile whose rows are one swizzle span long and follow one another, as a tensor copy leaves it.
// To go on along K within the span, add bytes to p.
template <Swizzle S>
SIMT_DEV uint64_t smem_desc_k_major(const void* p SIMT_ATP) {
  static_assert(S != Swizzle::none, "rows of a span");
  return smem_desc(p, 16, 8 * swizzle_bytes(S), desc_swizzle(S) SIMT_PASS);
}
// Of an N-major tile: rows of K, one span of N long, following one another; span_stride bytes to the next
// span of N.
template <Swizzle S>
SIMT_DEV uint64_t smem_desc_n_major(const void* p, int span_stride SIMT_ATP) {
  static_assert(S != Swizzle::none, "rows of a span");
  return smem_desc(p, span_stride, 8 * swizzle_bytes(S), desc_swizzle(S) SIMT_PASS);
}

// Before the first product and after each wait; after the last change of accumulators and registers of A.
SIMT_DEV void wgmma_fence(SIMT_AT) {
#if defined(SIMT_CPU)
  host::wgmma_fence(at);
#elif defined(SIMT_SM90A)
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  unsupported_arch();
#endif
}

// Closes the group of the products since the last commit.
SIMT_DEV void wgmma_commit(SIMT_AT) {
#if defined(SIMT_CPU)
  host::wgmma_commit(at);
#elif defined(SIMT_SM90A)
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  unsupported_arch();
#endif
}

// Waits for all groups but the last N.
template <int N>
SIMT_DEV void wgmma_wait(SIMT_AT) {
  static_assert(N >= 0 && N < 8, "wgmma groups that may stay in flight");
#if defined(SIMT_CPU)
  host::wgmma_wait(N, at);
#elif defined(SIMT_SM90A)
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#else
  unsupported_arch();
#endif
}

// Keeps the compiler from moving uses of these registers across this line: before wgmma_fence and after
// wgmma_wait, for nothing in the code says that a wait changes them.
template <int R>
SIMT_DEV void wgmma_pin([[maybe_unused]] float (&d)[R]) {
#ifdef SIMT_GPU
#pragma unroll
  for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
#endif
}
template <int R>
SIMT_DEV void wgmma_pin([[maybe_unused]] int (&d)[R]) {
#ifdef SIMT_GPU
#pragma unroll
  for (int i = 0; i < R; ++i) asm volatile("" : "+r"(d[i])::"memory");
#endif
}

// The instruction's N may be any multiple of 8 up to 256; these are the ones instantiated here.
__host__ __device__ constexpr bool wgmma_has_n(int n) {
  return n == 8 || n == 16 || n == 32 || n == 64 || n == 96 || n == 128 || n == 160 || n == 192 || n == 256;
}

// D = A B, or D += A B if accumulate.  A and B in shared memory; B K-major (stored as [N, K]), or N-major (as
// [K, N]) with TB = 1.
template <int N, int TB = 0>
SIMT_DEV void wgmma_bf16(float (&d)[N / 2], uint64_t da, uint64_t db, int accumulate SIMT_ATP) {
  static_assert(wgmma_has_n(N), "this N of wgmma is not instantiated");
#if defined(SIMT_CPU)
  host::wgmma(host::MmaType::bf16, N, d, nullptr, da, db, accumulate != 0, TB != 0, at);
#elif defined(SIMT_SM90A)
  if constexpr (TB == 0) {
    SIMT_WG_ANY_N(SIMT_WG_SS, "f", "k16.f32.bf16.bf16", ", 1, 1, 0, 0")
  } else {
    SIMT_WG_ANY_N(SIMT_WG_SS, "f", "k16.f32.bf16.bf16", ", 1, 1, 0, 1")
  }
#else
  unsupported_arch();
#endif
}
template <int N, int TB = 0>
SIMT_DEV void wgmma_f16(float (&d)[N / 2], uint64_t da, uint64_t db, int accumulate SIMT_ATP) {
  static_assert(wgmma_has_n(N), "this N of wgmma is not instantiated");
#if defined(SIMT_CPU)
  host::wgmma(host::MmaType::f16, N, d, nullptr, da, db, accumulate != 0, TB != 0, at);
#elif defined(SIMT_SM90A)
  if constexpr (TB == 0) {
    SIMT_WG_ANY_N(SIMT_WG_SS, "f", "k16.f32.f16.f16", ", 1, 1, 0, 0")
  } else {
    SIMT_WG_ANY_N(SIMT_WG_SS, "f", "k16.f32.f16.f16", ", 1, 1, 0, 1")
  }
#else
  unsupported_arch();
#endif
}

// The same with A in registers.
template <int N, int TB = 0>
SIMT_DEV void wgmma_bf16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t db, int accumulate SIMT_ATP) {
  static_assert(wgmma_has_n(N), "this N of wgmma is not instantiated");
#if defined(SIMT_CPU)
  host::wgmma(host::MmaType::bf16, N, d, a, 0, db, accumulate != 0, TB != 0, at);
#elif defined(SIMT_SM90A)
  if constexpr (TB == 0) {
    SIMT_WG_ANY_N(SIMT_WG_RS, "f", "k16.f32.bf16.bf16", ", 1, 1, 0")
  } else {
    SIMT_WG_ANY_N(SIMT_WG_RS, "f", "k16.f32.bf16.bf16", ", 1, 1, 1")
  }
#else
  unsupported_arch();
#endif
}
template <int N, int TB = 0>
SIMT_DEV void wgmma_f16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t db, int accumulate SIMT_ATP) {
  static_assert(wgmma_has_n(N), "this N of wgmma is not instantiated");
#if defined(SIMT_CPU)
  host::wgmma(host::MmaType::f16, N, d, a, 0, db, accumulate != 0, TB != 0, at);
#elif defined(SIMT_SM90A)
  if constexpr (TB == 0) {
    SIMT_WG_ANY_N(SIMT_WG_RS, "f", "k16.f32.f16.f16", ", 1, 1, 0")
  } else {
    SIMT_WG_ANY_N(SIMT_WG_RS, "f", "k16.f32.f16.f16", ", 1, 1, 1")
  }
#else
  unsupported_arch();
#endif
}

// 8-bit types: both operands K-major.  The hardware adds fp8 products with less than float32 precision (about
// 14 bits).
template <int N>
SIMT_DEV void wgmma_e4m3(float (&d)[N / 2], uint64_t da, uint64_t db, int accumulate SIMT_ATP) {
  static_assert(wgmma_has_n(N), "this N of wgmma is not instantiated");
#if defined(SIMT_CPU)
  host::wgmma(host::MmaType::e4m3, N, d, nullptr, da, db, accumulate != 0, false, at);
#elif defined(SIMT_SM90A)
  SIMT_WG_ANY_N(SIMT_WG_SS, "f", "k32.f32.e4m3.e4m3", ", 1, 1")
#else
  unsupported_arch();
#endif
}
template <int N>
SIMT_DEV void wgmma_s8(int (&d)[N / 2], uint64_t da, uint64_t db, int accumulate SIMT_ATP) {
  static_assert(wgmma_has_n(N), "this N of wgmma is not instantiated");
#if defined(SIMT_CPU)
  host::wgmma(host::MmaType::s8, N, d, nullptr, da, db, accumulate != 0, false, at);
#elif defined(SIMT_SM90A)
  SIMT_WG_ANY_N(SIMT_WG_SS, "r", "k32.s32.s8.s8", "")
#else
  unsupported_arch();
#endif
}
template <int N>
SIMT_DEV void wgmma_e4m3(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t db, int accumulate SIMT_ATP) {
  static_assert(wgmma_has_n(N), "this N of wgmma is not instantiated");
#if defined(SIMT_CPU)
  host::wgmma(host::MmaType::e4m3, N, d, a, 0, db, accumulate != 0, false, at);
#elif defined(SIMT_SM90A)
  SIMT_WG_ANY_N(SIMT_WG_RS, "f", "k32.f32.e4m3.e4m3", ", 1, 1")
#else
  unsupported_arch();
#endif
}
template <int N>
SIMT_DEV void wgmma_s8(int (&d)[N / 2], const uint32_t (&a)[4], uint64_t db, int accumulate SIMT_ATP) {
  static_assert(wgmma_has_n(N), "this N of wgmma is not instantiated");
#if defined(SIMT_CPU)
  host::wgmma(host::MmaType::s8, N, d, a, 0, db, accumulate != 0, false, at);
#elif defined(SIMT_SM90A)
  SIMT_WG_ANY_N(SIMT_WG_RS, "r", "k32.s32.s8.s8", "")
#else
  unsupported_arch();
#endif
}

// Moves registers between warpgroups, in steps of 8: the whole warpgroup, first those that give, and never
// more in all than the launch had.  The executor knows nothing of registers.
template <int R>
SIMT_DEV void set_max_regs_inc() {
  static_assert(R >= 24 && R <= 256 && R % 8 == 0, "registers of a thread");
#if defined(SIMT_GPU) && defined(SIMT_SM90A)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R));
#endif
}
template <int R>
SIMT_DEV void set_max_regs_dec() {
  static_assert(R >= 24 && R <= 256 && R % 8 == 0, "registers of a thread");
#if defined(SIMT_GPU) && defined(SIMT_SM90A)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R));
#endif
}

}  // namespace simt
