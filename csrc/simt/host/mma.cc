#include "simt/mma.h"

#include "simt/host/block.h"
#include "simt/host/element.h"
#include "simt/host/error.h"

namespace simt::host {

namespace {

struct Slot {
  void* d[2];  // of the n8 halves; the second may be null
  const uint32_t* a;
  uint32_t b[2][2];
};

// The layouts are those of mma.h.
template <MmaType Type>
void multiply(Block& block, int, void* const* slots, unsigned mask, Site at) {
  if (mask != ~0u) fail(at, "mma needs all 32 lanes of the warp, not 0x%08x", mask);
  using E = Element<Type>;
  using T = typename E::Value;
  constexpr int kE = E::kPerRegister, kK = 8 * kE;
  const auto slot = [&](int lane) -> const Slot& { return *static_cast<const Slot*>(slots[lane]); };
  T a[16][kK];
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    const uint32_t* r = slot(lane).a;
    for (int e = 0; e < kE; ++e) {
      a[g][t * kE + e] = E::get(r[0], e);
      a[g + 8][t * kE + e] = E::get(r[1], e);
      a[g][kK / 2 + t * kE + e] = E::get(r[2], e);
      a[g + 8][kK / 2 + t * kE + e] = E::get(r[3], e);
    }
  }
  for (int half = 0; half < 2 && slot(0).d[half] != nullptr; ++half) {
    alignas(32) T b[kK][8], d[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, t = lane % 4;
      const uint32_t* r = slot(lane).b[half];
      for (int e = 0; e < kE; ++e) {
        b[t * kE + e][g] = E::get(r[0], e);
        b[kK / 2 + t * kE + e][g] = E::get(r[1], e);
      }
      const T* in = static_cast<const T*>(slot(lane).d[half]);
      for (int e = 0; e < 4; ++e) d[g + e / 2 * 8][2 * t + e % 2] = in[e];
    }
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < kK; ++k) {
        for (int j = 0; j < 8; ++j) d[i][j] = multiply_add(d[i][j], a[i][k], b[k][j]);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      T* out = static_cast<T*>(slot(lane).d[half]);
      for (int e = 0; e < 4; ++e) out[e] = d[lane / 4 + e / 2 * 8][2 * (lane % 4) + e % 2];
    }
    ++block.count[k_mma];
  }
}

struct Op {
  const char* name;
  Finish finish;
};
constexpr Op kOps[] = {{"mma_bf16", multiply<MmaType::bf16>}, {"mma_f16", multiply<MmaType::f16>},
                       {"mma_e4m3", multiply<MmaType::e4m3>}, {"mma_e5m2", multiply<MmaType::e5m2>},
                       {"mma_s8", multiply<MmaType::s8>},     {"mma_tf32", multiply<MmaType::tf32>}};

}  // namespace

void mma(MmaType type, void* d0, void* d1, const uint32_t* a, uint32_t b0, uint32_t b1, uint32_t b2,
         uint32_t b3, Site at) {
  Slot slot{{d0, d1}, a, {{b0, b1}, {b2, b3}}};
  const Op& op = kOps[static_cast<int>(type)];
  warp_op(~0u, op.name, &slot, op.finish, at);
}

}  // namespace simt::host
