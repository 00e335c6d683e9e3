#include "kernels/attention/decode_kernel.cuh"

namespace inferx::cuda::decode {
template Error launch_head_dim<96>(const PagedAttentionParams&, void*);
}
