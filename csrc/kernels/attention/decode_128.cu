#include "kernels/attention/decode_kernel.cuh"

namespace inferx::cuda::decode {
template Error launch_head_dim<128>(const PagedAttentionParams&, void*);
}
