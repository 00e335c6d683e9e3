#include "cpu/moe_sum.h"

#include "cpu/isa/dispatch_dtype.h"
#include "cpu/isa/vec.h"

namespace inferx::cpu::INFERX_ISA {
namespace {

void moe_sum_row(DType dtype, void* out, const void* x, int64_t top_k, int64_t stride, int64_t hidden) {
  dispatch_dtype(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    for_each_vector(hidden, [&](int64_t i, int64_t count) {
      F sum = {};
      for (int64_t j = 0; j < top_k; ++j) sum += load(static_cast<const T*>(x) + j * stride + i, count);
      store(static_cast<T*>(out) + i, sum, count);
    });
  });
}

}  // namespace

const MoeSumKernels moe_sum_kernels = {moe_sum_row};

}  // namespace inferx::cpu::INFERX_ISA
