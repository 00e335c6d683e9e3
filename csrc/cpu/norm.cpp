#include "cpu/norm.h"

#include "cpu/parallel.h"

namespace inferx::cpu {

INFERX_SELECT_KERNELS(NormKernels, norm_kernels)

namespace {

constexpr int64_t kElementsPerThread =
    32768;  // below about 5 us of work a second thread costs more than it does

char* at(void* base, const Rows& rows, int64_t row, size_t item) {
  return static_cast<char*>(base) + rows.offset(row) * static_cast<int64_t>(item);
}
const char* at(const void* base, const Rows& rows, int64_t row, size_t item) {
  return static_cast<const char*>(base) + rows.offset(row) * static_cast<int64_t>(item);
}

}  // namespace

void rms_norm(const RmsNormParams& p) {
  const NormKernels& kernels = norm_kernels();
  const size_t item = dtype_size(p.dtype);
  parallel_for(p.x_rows.count, kElementsPerThread / (p.hidden + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels.rms_norm_row(p.dtype, p.weight_dtype, at(p.out, p.out_rows, row, item),
                           at(p.x, p.x_rows, row, item), p.weight, p.hidden, p.eps);
    }
  });
}

void fused_add_rms_norm(const FusedAddRmsNormParams& p) {
  const NormKernels& kernels = norm_kernels();
  const size_t item = dtype_size(p.dtype);
  parallel_for(p.x_rows.count, kElementsPerThread / (p.hidden + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernels.fused_add_rms_norm_row(p.dtype, p.weight_dtype, at(p.x, p.x_rows, row, item),
                                     at(p.residual, p.residual_rows, row, item), p.weight, p.hidden, p.eps);
    }
  });
}

}  // namespace inferx::cpu
