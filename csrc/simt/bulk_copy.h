// Bulk copies of contiguous bytes, done by the copy engine for one thread that asks (sm_90).
//
// Both addresses and the size are multiples of 16.  They run in the async proxy: shared memory that threads
// have written needs their fence_proxy_async() before bulk_store.
#pragma once
#include "simt/arch.h"
#include "simt/mbarrier.h"
#include "simt/shared.h"

namespace simt {

#ifdef SIMT_CPU
namespace host {
void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar, Site at);
void bulk_store(void* dst, const void* src, uint32_t bytes, Site at);
void bulk_commit();
void bulk_wait(int groups_left, bool only_reads, Site at);
}  // namespace host
#endif

// global -> shared; completes on bar, which must have been told to expect the bytes.
SIMT_DEV void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar SIMT_ATP) {
#if defined(SIMT_CPU)
  host::bulk_load(dst, src, bytes, bar, at);
#elif SIMT_ARCH >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          smem_u32(dst)),
      "l"(src), "r"(bytes), "r"(smem_u32(bar))
      : "memory");
#else
  unsupported_arch();
#endif
}

// shared -> global; belongs to this thread's bulk group.
SIMT_DEV void bulk_store(void* dst, const void* src, uint32_t bytes SIMT_ATP) {
#if defined(SIMT_CPU)
  host::bulk_store(dst, src, bytes, at);
#elif SIMT_ARCH >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(smem_u32(src)),
               "r"(bytes)
               : "memory");
#else
  unsupported_arch();
#endif
}

// Closes the group of this thread's bulk stores (plain and tensor) since the last commit.
SIMT_DEV void bulk_commit() {
#if defined(SIMT_CPU)
  host::bulk_commit();
#elif SIMT_ARCH >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
  unsupported_arch();
#endif
}

// Waits until all but the last N groups have read their sources, which may then be written again.  A block
// must not end before that.
template <int N>
SIMT_DEV void bulk_wait_read(SIMT_AT) {
#if defined(SIMT_CPU)
  host::bulk_wait(N, true, at);
#elif SIMT_ARCH >= 900
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
#else
  unsupported_arch();
#endif
}

// Waits until all but the last N groups have written their targets.
template <int N>
SIMT_DEV void bulk_wait(SIMT_AT) {
#if defined(SIMT_CPU)
  host::bulk_wait(N, false, at);
#elif SIMT_ARCH >= 900
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
#else
  unsupported_arch();
#endif
}

}  // namespace simt
