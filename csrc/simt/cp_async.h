// cp.async: copies from global to shared memory that a thread starts and later waits for (sm_80).
#pragma once
#include "simt/arch.h"
#include "simt/shared.h"

namespace simt {

#ifdef SIMT_CPU
namespace host {
void cp_async(void* dst, const void* src, int bytes, int src_bytes, Site at);
void cp_async_commit();
void cp_async_wait(int groups_left, Site at);
}  // namespace host
#endif

// Starts a copy of N = 4, 8 or 16 bytes, of which the first src_bytes come from src and the rest are zeros.
// Both addresses are multiples of N; with src_bytes == 0 nothing is read, src may be anything.
template <int N>
SIMT_DEV void cp_async(void* dst, const void* src, int src_bytes = N SIMT_ATP) {
  static_assert(N == 4 || N == 8 || N == 16, "cp.async copies 4, 8 or 16 bytes");
#ifdef SIMT_CPU
  host::cp_async(dst, src, N, src_bytes, at);
#else
  if constexpr (N == 16) {  // .cg: past L1, only for 16 bytes
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_u32(dst)), "l"(src),
                 "r"(src_bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(smem_u32(dst)), "l"(src), "n"(N),
                 "r"(src_bytes)
                 : "memory");
  }
#endif
}

// Closes the group of this thread's copies since the last commit; an empty group is a group too.
SIMT_DEV void cp_async_commit() {
#ifdef SIMT_CPU
  host::cp_async_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for this thread's groups but the last N.  Other threads need a barrier after it.
template <int N>
SIMT_DEV void cp_async_wait(SIMT_AT) {
  static_assert(N >= 0, "groups that may stay in flight");
#ifdef SIMT_CPU
  host::cp_async_wait(N, at);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

}  // namespace simt
