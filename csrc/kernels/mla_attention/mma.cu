// Latent attention on tensor cores: which kernels run.  See mma.cuh.
#include "kernels/attention/combine.cuh"
#include "kernels/mla_attention/mma.cuh"

namespace inferx::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kCombineWarps * 32, 4)
    mla_combine_kernel(const __grid_constant__ MlaAttentionParams p, int rows, int groups) {
  const int dim = static_cast<int>(p.value_dim);
  combine_splits<T>(p, rows, dim, dim, groups);
}

template <class T>
Error combine(MlaAttentionParams p, void* stream) {
  p.unit_rows = 1;  // what units there were does not matter any more
  const int64_t queries = p.split_rows / p.num_heads;
  const int64_t rows = (p.max_query_len < queries ? p.max_query_len : queries) * p.num_heads;
  const int64_t groups = (p.value_dim + kCombineColumns - 1) / kCombineColumns;
  if (rows == 0) return kSuccess;
  return launch(mla_combine_kernel<T>, dim3(combine_ctas(p.batch * rows * groups)), dim3(kCombineWarps * 32),
                0, stream, p, static_cast<int>(rows), static_cast<int>(groups));
}

}  // namespace

Error launch_mla_attention_mma(const MlaAttentionParams& params, void* stream) {
  MlaAttentionParams p = params;
  if (p.batch == 0 || p.num_tokens == 0) return kSuccess;
  if (p.block_size % kOctet != 0 || !has_mla_tensor_cores(p.dtype, p.head_dim, p.value_dim))
    return kInvalidValue;
  p.group = static_cast<int>(p.num_heads);
  p.split_tiles = kMlaSplit / kMlaTile;
  p.split_rows = static_cast<int>(mla_split_rows(p.num_heads));
  const Error error = p.head_dim == 576   ? mla::launch_dims<576, 512>(p, stream)
                      : p.head_dim == 288 ? mla::launch_dims<288, 256>(p, stream)
                                          : mla::launch_dims<80, 64>(p, stream);
  const bool several_splits = p.max_blocks * p.block_size > kMlaSplit;
  if (error != kSuccess || p.plan == nullptr || !several_splits) return error;
  return p.dtype == DType::bf16 ? combine<__nv_bfloat16>(p, stream) : combine<__half>(p, stream);
}

}  // namespace inferx::cuda
