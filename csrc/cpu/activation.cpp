#include "cpu/activation.h"

#include "cpu/parallel.h"

namespace inferx::cpu {

INFERX_SELECT_KERNELS(ActivationKernels, activation_kernels)

void activate_and_mul(const ActivateAndMulParams& p) {
  constexpr int64_t kElementsPerThread = 8192;  // about 5 us of work
  const ActivationKernels& kernels = activation_kernels();
  const int64_t item = static_cast<int64_t>(dtype_size(p.dtype));
  parallel_for(p.x_rows.count, kElementsPerThread / (p.d + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const char* gate = static_cast<const char*>(p.x) + p.x_rows.offset(row) * item;
      char* out = static_cast<char*>(p.out) + p.out_rows.offset(row) * item;
      kernels.activate_and_mul_row(p.activation, p.dtype, out, gate, gate + p.d * item, p.d);
    }
  });
}

}  // namespace inferx::cpu
