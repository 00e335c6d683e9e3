// The experts' matrix products: which kernel runs.
#include "kernels/moe_gemm/tensor_core.cuh"

namespace inferx::cuda {

Error launch_moe_gemm(const MoeGemmParams& p, void* stream) {
  if (p.num_pairs == 0 || p.columns == 0) return kSuccess;
  if (p.dtype == DType::f32) return launch_moe_gemm_exact(p, stream);
  switch (p.sorted_token_ids != nullptr ? p.block_size : kFewTokens) {
    case 8:
      return moe_gemm::launch_tokens<8>(p, stream);
    case 16:
      return moe_gemm::launch_tokens<16>(p, stream);
    case 32:
      return moe_gemm::launch_tokens<32>(p, stream);
    case 64:
      return moe_gemm::launch_tokens<64>(p, stream);
    case 128:
      return moe_gemm::launch_tokens<128>(p, stream);
    default:
      return kInvalidValue;
  }
}

}  // namespace inferx::cuda
