// mma.sync: D[16, 8] += A[16, K] B[K, 8] by one warp, operands in registers, all 32 lanes taking part.
//
// With g = lane/4 and t = lane%4, and E elements in a register (2 of 16 bits, 4 of 8 bits, 1 of tf32; K = 8
// E):
//   a[0] A[g][tE ..], a[1] A[g+8][tE ..], a[2] A[g][K/2 + tE ..], a[3] A[g+8][K/2 + tE ..]
//   b0   B[tE ..][g], b1   B[K/2 + tE ..][g]
//   d[0], d[1] D[g][2t], D[g][2t+1];  d[2], d[3] the same of row g+8
// The _n16 forms make two products with one A: columns 0-7 of B in b[0], b[1] and columns 8-15 in b[2], b[3],
// as ldmatrix_x4 leaves them; one of them costs the executor half as much as two of the others.
#pragma once
#include "simt/arch.h"
#include "simt/fp8.h"
#include "simt/shared.h"

namespace simt {

#ifdef SIMT_CPU
namespace host {
enum class MmaType { bf16, f16, e4m3, e5m2, s8, tf32 };
// d1 and b2, b3: the second product of an _n16 form, or null.
void mma(MmaType type, void* d0, void* d1, const uint32_t* a, uint32_t b0, uint32_t b1, uint32_t b2,
         uint32_t b3, Site at);
}  // namespace host

#define SIMT_MMA_BODY(type, shape_and_types, reg) \
  host::mma(host::MmaType::type, d, nullptr, a, b0, b1, 0, 0, at);
#define SIMT_MMA_N16_BODY(type, fn) host::mma(host::MmaType::type, d0, d1, a, b[0], b[1], b[2], b[3], at);
#else
#define SIMT_MMA_BODY(type, shape_and_types, reg)                                                           \
  asm volatile("mma.sync.aligned." shape_and_types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+" reg(d[0]), "+" reg(d[1]), "+" reg(d[2]), "+" reg(d[3])                                 \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#define SIMT_MMA_N16_BODY(type, fn) \
  fn(d0, a, b[0], b[1]);            \
  fn(d1, a, b[2], b[3]);
#endif

// K = 16, bf16, sm_80
SIMT_DEV void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 SIMT_ATP){
    SIMT_MMA_BODY(bf16, "m16n8k16.row.col.f32.bf16.bf16.f32", "f")} SIMT_DEV
    void mma_bf16_n16(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4],
                      const uint32_t (&b)[4] SIMT_ATP){SIMT_MMA_N16_BODY(bf16, mma_bf16)}

// K = 16, f16, sm_80
SIMT_DEV void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 SIMT_ATP){
    SIMT_MMA_BODY(f16, "m16n8k16.row.col.f32.f16.f16.f32", "f")} SIMT_DEV
    void mma_f16_n16(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4],
                     const uint32_t (&b)[4] SIMT_ATP){SIMT_MMA_N16_BODY(f16, mma_f16)}
#if defined(SIMT_GPU) && SIMT_ARCH < 890
// fp8 before sm_89: both halves of each register as f16, which holds every e4m3 and e5m2 exactly.  The order
// of K is another one, and the same in A and B.
#define SIMT_MMA_FP8_BODY(type, convert)                                                             \
  for (int half = 0; half < 2; ++half) {                                                             \
    const auto part = [half](uint32_t r) { return convert(static_cast<uint16_t>(r >> 16 * half)); }; \
    const uint32_t wide[4] = {part(a[0]), part(a[1]), part(a[2]), part(a[3])};                       \
    mma_f16(d, wide, part(b0), part(b1));                                                            \
  }
#else
#define SIMT_MMA_FP8_BODY(type, convert) \
  SIMT_MMA_BODY(type, "m16n8k32.row.col.f32." #type "." #type ".f32", "f")
#endif

// K = 32, fp8; one instruction since sm_89, two products in f16 and conversions before.
SIMT_DEV void mma_e4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                       uint32_t b1 SIMT_ATP){SIMT_MMA_FP8_BODY(e4m3, e4m3x2_to_f16x2)} SIMT_DEV
    void mma_e4m3_n16(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4],
                      const uint32_t (&b)[4] SIMT_ATP){SIMT_MMA_N16_BODY(e4m3, mma_e4m3)} SIMT_DEV
    void mma_e5m2(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                  uint32_t b1 SIMT_ATP){SIMT_MMA_FP8_BODY(e5m2, e5m2x2_to_f16x2)}

// K = 32, int8, exact, sm_80; sums wrap at 32 bits.
SIMT_DEV void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                     uint32_t b1 SIMT_ATP){SIMT_MMA_BODY(s8, "m16n8k32.row.col.s32.s8.s8.s32", "r")} SIMT_DEV
    void mma_s8_n16(int (&d0)[4], int (&d1)[4], const uint32_t (&a)[4],
                    const uint32_t (&b)[4] SIMT_ATP){SIMT_MMA_N16_BODY(s8, mma_s8)}

// K = 8, tf32: float32 bits whose low 13 bits are dropped, sm_80.
SIMT_DEV void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1 SIMT_ATP) {
  SIMT_MMA_BODY(tf32, "m16n8k8.row.col.f32.tf32.tf32.f32", "f")
}

#undef SIMT_MMA_BODY
#undef SIMT_MMA_N16_BODY
#undef SIMT_MMA_FP8_BODY

}  // namespace simt
