// The functions of gated activations, out = f(gate) * up: the same forms as csrc/cpu/isa/activation.cpp, none
// of which cancels in the negative tail.
#pragma once
#include "simt/simt.h"

namespace inferx::cuda {

struct Silu {
  SIMT_DEV static float apply(float z) { return z / (1.0f + expf(-z)); }
};
struct Gelu {
  SIMT_DEV static float apply(float z) {
    const float tail = 0.5f * erfcf(fabsf(z) * 0x1.6a09e6p-1f);
    return z * (z < 0.0f ? tail : 1.0f - tail);
  }
};
struct GeluTanh {
  SIMT_DEV static float apply(float z) {
    const float inner = fmaf(0.044715f * z * z, z, z);
    return z / (1.0f + expf(-0x1.988454p0f * inner));
  }
};

}  // namespace inferx::cuda
