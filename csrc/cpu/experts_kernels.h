// The copies of isa/experts.cpp; a header of its own, since experts.h has STL types in it.
#pragma once
#include <cstdint>

#include "cpu/isa.h"

namespace inferx::cpu {

struct ExpertsKernels {
  // out[i] = sum over j in order of weights[j] * y[rows[j] * n + i] for i < n; rows[j] = -1 adds nothing.
  void (*combine)(float* out, const float* y, int64_t n, const int32_t* rows, const float* weights,
                  int64_t top_k);
};
INFERX_DECLARE_KERNELS(ExpertsKernels, experts_kernels)

}  // namespace inferx::cpu
