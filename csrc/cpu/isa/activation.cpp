#include "cpu/activation.h"

#include "cpu/isa/dispatch_dtype.h"
#include "cpu/isa/vec_math.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

// z / (1 + exp(-z)): the same value as z sigmoid(z) without a second rounding.
inline F silu(F z) { return z / (splat(1.0f) + exp(-z)); }

// z Phi(z) with Phi(-|z|) = exp(-z^2 / 2) erfcx(|z| / sqrt 2) / 2, which keeps its digits in the negative
// tail, where 1 + erf(z / sqrt 2) would lose them.
inline F gelu(F z) {
  const F a = abs(z);
  const F tail = splat(0.5f) * exp(splat(-0.5f) * a * a) * erfcx(a * splat(0x1.6a09e6p-1f));
  return z * select(z < F{}, tail, splat(1.0f) - tail);
}

// z (1 + tanh(u)) / 2 = z sigmoid(2u), u = sqrt(2/pi) (z + 0.044715 z^3): no cancellation for negative z
// either.
inline F gelu_tanh(F z) {
  const F inner = fma(splat(0.044715f) * z * z, z, z);
  return z / (splat(1.0f) + exp(splat(-0x1.988454p0f) * inner));
}

inline F swigluoai(F gate, F up, F alpha, F limit) {
  gate = select(gate > limit, limit, gate);  // NaN stays
  up = select(up > limit, limit, up);
  up = select(up < -limit, -limit, up);
  return gate / (splat(1.0f) + exp(-(alpha * gate))) * (up + splat(1.0f));
}

// f(gate, up)
template <class T, class Function>
inline void activate_and_mul(T* out, const T* gate, const T* up, int64_t d, const Function& f) {
  for_each_vector(d, [&](int64_t i, int64_t count) {
    store(out + i, f(load(gate + i, count), load(up + i, count)), count);
  });
}

void activate_and_mul_row(const GatedActivation& activation, DType dtype, void* out, const void* gate,
                          const void* up, int64_t d) {
  const F alpha = splat(activation.alpha), limit = splat(activation.limit);
  dispatch_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    auto* o = static_cast<T*>(out);
    auto* g = static_cast<const T*>(gate);
    auto* u = static_cast<const T*>(up);
    switch (activation.f) {
      case Activation::silu:
        return activate_and_mul(o, g, u, d, [](F z, F y) { return silu(z) * y; });
      case Activation::gelu:
        return activate_and_mul(o, g, u, d, [](F z, F y) { return gelu(z) * y; });
      case Activation::gelu_tanh:
        return activate_and_mul(o, g, u, d, [](F z, F y) { return gelu_tanh(z) * y; });
      case Activation::swigluoai:
        return activate_and_mul(o, g, u, d, [&](F z, F y) { return swigluoai(z, y, alpha, limit); });
    }
  });
}

}  // namespace

const ActivationKernels activation_kernels = {activate_and_mul_row};

}  // namespace inferx::cpu::INFERX_ISA
