// mbarrier: a barrier in shared memory that counts arrivals of threads and bytes of asynchronous copies
// (sm_80; expect_tx and everything that copies by bytes: sm_90).
//
// A phase ends when `count` arrivals have come and as many bytes as expected; then the next phase begins.
// wait(bar, parity) returns once the phase of that parity (0 for the first) has ended: a consumer of a ring
// waits for parity 0, 1, 0, ... of "full", a producer starts with parity 1 of "empty", which has "ended"
// before it began.
#pragma once
#include "simt/arch.h"
#include "simt/shared.h"

namespace simt {

#ifdef SIMT_CPU
namespace host {
void mbar_init(uint64_t* bar, int count, Site at);
void mbar_inval(uint64_t* bar, Site at);
void mbar_fence_init();
void mbar_arrive(uint64_t* bar, uint32_t expected_bytes, Site at);
void mbar_expect_tx(uint64_t* bar, uint32_t bytes, Site at);
bool mbar_try_wait(uint64_t* bar, uint32_t parity, Site at);
void mbar_wait(uint64_t* bar, uint32_t parity, Site at);
void cp_async_mbar_arrive(uint64_t* bar, Site at);
void fence_proxy_async();
}  // namespace host
#endif

// One thread, once, for a barrier aligned to 8; 1 <= count < 2^20.  Then mbar_fence_init() if copies complete
// on it, and a barrier before other threads use it.
SIMT_DEV void mbar_init(uint64_t* bar, int count SIMT_ATP) {
#ifdef SIMT_CPU
  host::mbar_init(bar, count, at);
#else
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_u32(bar)), "r"(count) : "memory");
#endif
}

// Ends a barrier's life: its 8 bytes may be used for something else, or initialised again.
SIMT_DEV void mbar_inval(uint64_t* bar SIMT_ATP) {
#ifdef SIMT_CPU
  host::mbar_inval(bar, at);
#else
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(smem_u32(bar)) : "memory");
#endif
}

// After this thread's mbar_inits: asynchronous copies see them.
SIMT_DEV void mbar_fence_init() {
#if defined(SIMT_CPU)
  host::mbar_fence_init();
#elif SIMT_ARCH >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
  unsupported_arch();
#endif
}

// One arrival; what this thread did before is visible to those who wait for the phase.
SIMT_DEV void mbar_arrive(uint64_t* bar SIMT_ATP) {
#ifdef SIMT_CPU
  host::mbar_arrive(bar, 0, at);
#else
  [[maybe_unused]] uint64_t state;
  asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(smem_u32(bar)) : "memory");
#endif
}

// The phase also waits for `bytes` (< 2^20) of copies; and one arrival.  Exactly what the copies bring: with
// another number the phase never ends.
SIMT_DEV void mbar_arrive_expect_tx(uint64_t* bar, uint32_t bytes SIMT_ATP) {
#if defined(SIMT_CPU)
  host::mbar_arrive(bar, bytes, at);
#elif SIMT_ARCH >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_u32(bar)), "r"(bytes)
               : "memory");
#else
  unsupported_arch();
#endif
}

// The bytes without an arrival.
SIMT_DEV void mbar_expect_tx(uint64_t* bar, uint32_t bytes SIMT_ATP) {
#if defined(SIMT_CPU)
  host::mbar_expect_tx(bar, bytes, at);
#elif SIMT_ARCH >= 900
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(smem_u32(bar)), "r"(bytes)
               : "memory");
#else
  unsupported_arch();
#endif
}

// Whether the phase of that parity has ended; may wait a while for it (sm_90).
SIMT_DEV bool mbar_try_wait(uint64_t* bar, uint32_t parity SIMT_ATP) {
#ifdef SIMT_CPU
  return host::mbar_try_wait(bar, parity, at);
#else
  uint32_t done;
#if SIMT_ARCH >= 900
#define SIMT_MBAR_TEST "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define SIMT_MBAR_TEST "mbarrier.test_wait.parity.shared.b64"
#endif
  asm volatile("{\n.reg .pred p;\n" SIMT_MBAR_TEST " p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(smem_u32(bar)), "r"(parity)
               : "memory");
#undef SIMT_MBAR_TEST
  return done != 0;
#endif
}

// Waits until the phase of that parity has ended.
SIMT_DEV void mbar_wait(uint64_t* bar, uint32_t parity SIMT_ATP) {
#ifdef SIMT_CPU
  host::mbar_wait(bar, parity, at);
#else
  while (!mbar_try_wait(bar, parity)) {
  }
#endif
}

// One arrival of this thread, made when all its cp.async so far have landed.  It counts as one of the `count`
// given to mbar_init.
SIMT_DEV void cp_async_mbar_arrive_noinc(uint64_t* bar SIMT_ATP) {
#ifdef SIMT_CPU
  host::cp_async_mbar_arrive(bar, at);
#else
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(smem_u32(bar)) : "memory");
#endif
}

// What this thread has written to shared memory so far becomes visible to the async proxy (wgmma, bulk
// copies). Before the barrier that lets another thread start those.
SIMT_DEV void fence_proxy_async() {
#if defined(SIMT_CPU)
  host::fence_proxy_async();
#elif SIMT_ARCH >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  unsupported_arch();
#endif
}

}  // namespace simt
