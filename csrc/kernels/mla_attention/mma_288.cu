#include "kernels/mla_attention/mma.cuh"

namespace inferx::cuda::mla {
template Error launch_dims<288, 256>(const MlaAttentionParams&, void*);
}
