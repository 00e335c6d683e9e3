#include "cpu/experts_kernels.h"
#include "cpu/isa/vec.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

void combine(float* out, const float* y, int64_t n, const int32_t* rows, const float* weights,
             int64_t top_k) {
  for_each_vector(n, [&](int64_t i, int64_t count) {
    F sum{};
    for (int64_t j = 0; j < top_k; ++j) {
      if (rows[j] >= 0) sum += splat(weights[j]) * load(y + rows[j] * n + i, count);
    }
    store(out + i, sum, count);
  });
}

}  // namespace

const ExpertsKernels experts_kernels = {combine};

}  // namespace inferx::cpu::INFERX_ISA
