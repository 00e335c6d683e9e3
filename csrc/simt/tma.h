// Tensor tiles by the copy engine (TMA, sm_90): boxes of a strided tensor of 2 to 5 dimensions.
//
// The host describes tensor and box in a tensor map, which the kernel takes as `const __grid_constant__
// CUtensorMap`. Coordinates are elements, innermost first, and may lie outside the tensor: there, loads give
// zeros and stores write nothing.  In shared memory a box is dense, innermost dimension first, then swizzled;
// its start is aligned to swizzle_align() (128 without swizzle).  A load completes on an mbarrier with the
// whole box's bytes, whatever part of it is outside.
#pragma once
#include "simt/arch.h"
#include "simt/bulk_copy.h"
#include "simt/shared.h"
#include "simt/swizzle.h"
#include "simt/tensor_map.h"

namespace simt {

#ifdef SIMT_CPU
namespace host {
void tma_load(void* dst, const CUtensorMap* map, uint64_t* bar, int rank, const int* coords, Site at);
void tma_store(const CUtensorMap* map, const void* src, int rank, const int* coords, Site at);
}  // namespace host
#endif

SIMT_DEV void tma_load_2d(void* dst, const CUtensorMap* map, uint64_t* bar, int x, int y SIMT_ATP) {
#if defined(SIMT_CPU)
  const int coords[] = {x, y};
  host::tma_load(dst, map, bar, 2, coords, at);
#elif SIMT_ARCH >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(smem_u32(dst)),
      "l"(map), "r"(x), "r"(y), "r"(smem_u32(bar))
      : "memory");
#else
  unsupported_arch();
#endif
}
SIMT_DEV void tma_load_3d(void* dst, const CUtensorMap* map, uint64_t* bar, int x, int y, int z SIMT_ATP) {
#if defined(SIMT_CPU)
  const int coords[] = {x, y, z};
  host::tma_load(dst, map, bar, 3, coords, at);
#elif SIMT_ARCH >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4}], [%5];" ::"r"(smem_u32(dst)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(smem_u32(bar))
      : "memory");
#else
  unsupported_arch();
#endif
}
SIMT_DEV void tma_load_4d(void* dst, const CUtensorMap* map, uint64_t* bar, int x, int y, int z,
                          int w SIMT_ATP) {
#if defined(SIMT_CPU)
  const int coords[] = {x, y, z, w};
  host::tma_load(dst, map, bar, 4, coords, at);
#elif SIMT_ARCH >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4, %5}], [%6];" ::"r"(smem_u32(dst)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(smem_u32(bar))
      : "memory");
#else
  unsupported_arch();
#endif
}
SIMT_DEV void tma_load_5d(void* dst, const CUtensorMap* map, uint64_t* bar, int x, int y, int z, int w,
                          int v SIMT_ATP) {
#if defined(SIMT_CPU)
  const int coords[] = {x, y, z, w, v};
  host::tma_load(dst, map, bar, 5, coords, at);
#elif SIMT_ARCH >= 900
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4, %5, %6}], [%7];" ::"r"(smem_u32(dst)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "r"(smem_u32(bar))
      : "memory");
#else
  unsupported_arch();
#endif
}

// shared -> global, of this thread's bulk group: fence_proxy_async() before it, bulk_commit() and
// bulk_wait_read() after.
SIMT_DEV void tma_store_2d(const CUtensorMap* map, const void* src, int x, int y SIMT_ATP) {
#if defined(SIMT_CPU)
  const int coords[] = {x, y};
  host::tma_store(map, src, 2, coords, at);
#elif SIMT_ARCH >= 900
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
               "r"(x), "r"(y), "r"(smem_u32(src))
               : "memory");
#else
  unsupported_arch();
#endif
}
SIMT_DEV void tma_store_3d(const CUtensorMap* map, const void* src, int x, int y, int z SIMT_ATP) {
#if defined(SIMT_CPU)
  const int coords[] = {x, y, z};
  host::tma_store(map, src, 3, coords, at);
#elif SIMT_ARCH >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map),
      "r"(x), "r"(y), "r"(z), "r"(smem_u32(src))
      : "memory");
#else
  unsupported_arch();
#endif
}
SIMT_DEV void tma_store_4d(const CUtensorMap* map, const void* src, int x, int y, int z, int w SIMT_ATP) {
#if defined(SIMT_CPU)
  const int coords[] = {x, y, z, w};
  host::tma_store(map, src, 4, coords, at);
#elif SIMT_ARCH >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map),
      "r"(x), "r"(y), "r"(z), "r"(w), "r"(smem_u32(src))
      : "memory");
#else
  unsupported_arch();
#endif
}
SIMT_DEV void tma_store_5d(const CUtensorMap* map, const void* src, int x, int y, int z, int w,
                           int v SIMT_ATP) {
#if defined(SIMT_CPU)
  const int coords[] = {x, y, z, w, v};
  host::tma_store(map, src, 5, coords, at);
#elif SIMT_ARCH >= 900
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(
          map),
      "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "r"(smem_u32(src))
      : "memory");
#else
  unsupported_arch();
#endif
}

// Fetches the map itself, early: the first copy then starts sooner.  Changes nothing else.
SIMT_DEV void tma_prefetch_map([[maybe_unused]] const CUtensorMap* map) {
#if defined(SIMT_GPU) && SIMT_ARCH >= 900
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

}  // namespace simt
