#include "kernels/attention/prefill.cuh"

namespace inferx::cuda::prefill {
template Error launch_head_dim<80>(const PagedAttentionParams&, void*);
}
