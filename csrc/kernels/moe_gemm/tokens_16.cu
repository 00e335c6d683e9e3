#include "kernels/moe_gemm/tensor_core.cuh"

namespace inferx::cuda::moe_gemm {
template Error launch_tokens<16>(const MoeGemmParams&, void*);
}
