#include "kernels/mla_attention/mma.cuh"

namespace inferx::cuda::mla {
template Error launch_dims<576, 512>(const MlaAttentionParams&, void*);
}
