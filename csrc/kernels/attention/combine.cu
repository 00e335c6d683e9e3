#include "kernels/attention/combine.cuh"
#include "kernels/attention/combine.h"

namespace inferx::cuda {
namespace {

// Rows (query, head) of one request, at most.
int64_t max_rows(const PagedAttentionParams& p) {
  const int64_t group = p.num_heads / p.num_kv_heads, queries = decode_rows(group) / group;
  return (p.max_query_len < queries ? p.max_query_len : queries) * p.num_heads;
}

template <class T>
__global__ void __launch_bounds__(kCombineWarps * 32)
    combine_splits_kernel(const __grid_constant__ PagedAttentionParams p, int rows, int groups) {
  combine_splits<T>(p, rows, padded_head_dim(p.head_dim), p.head_dim, groups);
}

template <class T>
Error go(const PagedAttentionParams& p, void* stream) {
  const int64_t rows = max_rows(p), groups = (p.head_dim + kCombineColumns - 1) / kCombineColumns;
  return launch(combine_splits_kernel<T>, dim3(combine_ctas(p.batch * rows * groups)),
                dim3(kCombineWarps * 32), 0, stream, p, static_cast<int>(rows), static_cast<int>(groups));
}

}  // namespace

Error launch_combine_splits(const PagedAttentionParams& p, void* stream) {
  if (max_rows(p) == 0) return kSuccess;
  return p.dtype == DType::bf16 ? go<__nv_bfloat16>(p, stream) : go<__half>(p, stream);
}

}  // namespace inferx::cuda
