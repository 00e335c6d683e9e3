// ldmatrix (sm_75) and stmatrix (sm_90): 8x8 matrices of 16-bit elements between shared memory and registers.
//
// Matrix i of xN has its eight rows, of 16 bytes each and 16-byte aligned, where lanes 8i .. 8i+7 point; the
// pointers of the other lanes are not used.  Lane l holds of each matrix, low half first, the elements (l/4,
// 2(l%4)) and (l/4, 2(l%4)+1); with _trans those of the transposed matrix.  All 32 lanes take part.
#pragma once
#include "simt/arch.h"
#include "simt/shared.h"

namespace simt {

#ifdef SIMT_CPU
namespace host {
void ldmatrix(uint32_t* regs, int matrices, const void* row, bool transposed, Site at);
void stmatrix(void* row, const uint32_t* regs, int matrices, bool transposed, Site at);
}  // namespace host

#endif

SIMT_DEV void ldmatrix_x1(uint32_t (&r)[1], const void* row SIMT_ATP) {
#ifdef SIMT_CPU
  host::ldmatrix(r, 1, row, false, at);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
               : "=r"(r[0])
               : "r"(smem_u32(row))
               : "memory");
#endif
}
SIMT_DEV void ldmatrix_x2(uint32_t (&r)[2], const void* row SIMT_ATP) {
#ifdef SIMT_CPU
  host::ldmatrix(r, 2, row, false, at);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(smem_u32(row))
               : "memory");
#endif
}
SIMT_DEV void ldmatrix_x4(uint32_t (&r)[4], const void* row SIMT_ATP) {
#ifdef SIMT_CPU
  host::ldmatrix(r, 4, row, false, at);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem_u32(row))
               : "memory");
#endif
}
SIMT_DEV void ldmatrix_x1_trans(uint32_t (&r)[1], const void* row SIMT_ATP) {
#ifdef SIMT_CPU
  host::ldmatrix(r, 1, row, true, at);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
               : "=r"(r[0])
               : "r"(smem_u32(row))
               : "memory");
#endif
}
SIMT_DEV void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row SIMT_ATP) {
#ifdef SIMT_CPU
  host::ldmatrix(r, 2, row, true, at);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(smem_u32(row))
               : "memory");
#endif
}
SIMT_DEV void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row SIMT_ATP) {
#ifdef SIMT_CPU
  host::ldmatrix(r, 4, row, true, at);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem_u32(row))
               : "memory");
#endif
}

// stmatrix: the reverse.
SIMT_DEV void stmatrix_x1(void* row, const uint32_t (&r)[1] SIMT_ATP) {
#if defined(SIMT_CPU)
  host::stmatrix(row, r, 1, false, at);
#elif SIMT_ARCH >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(smem_u32(row)), "r"(r[0])
               : "memory");
#else
  unsupported_arch();
#endif
}
SIMT_DEV void stmatrix_x2(void* row, const uint32_t (&r)[2] SIMT_ATP) {
#if defined(SIMT_CPU)
  host::stmatrix(row, r, 2, false, at);
#elif SIMT_ARCH >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};" ::"r"(smem_u32(row)), "r"(r[0]),
               "r"(r[1])
               : "memory");
#else
  unsupported_arch();
#endif
}
SIMT_DEV void stmatrix_x4(void* row, const uint32_t (&r)[4] SIMT_ATP) {
#if defined(SIMT_CPU)
  host::stmatrix(row, r, 4, false, at);
#elif SIMT_ARCH >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(smem_u32(row)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#else
  unsupported_arch();
#endif
}
SIMT_DEV void stmatrix_x1_trans(void* row, const uint32_t (&r)[1] SIMT_ATP) {
#if defined(SIMT_CPU)
  host::stmatrix(row, r, 1, true, at);
#elif SIMT_ARCH >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(smem_u32(row)), "r"(r[0])
               : "memory");
#else
  unsupported_arch();
#endif
}
SIMT_DEV void stmatrix_x2_trans(void* row, const uint32_t (&r)[2] SIMT_ATP) {
#if defined(SIMT_CPU)
  host::stmatrix(row, r, 2, true, at);
#elif SIMT_ARCH >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(smem_u32(row)),
               "r"(r[0]), "r"(r[1])
               : "memory");
#else
  unsupported_arch();
#endif
}
SIMT_DEV void stmatrix_x4_trans(void* row, const uint32_t (&r)[4] SIMT_ATP) {
#if defined(SIMT_CPU)
  host::stmatrix(row, r, 4, true, at);
#elif SIMT_ARCH >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(smem_u32(row)),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
#else
  unsupported_arch();
#endif
}

}  // namespace simt
