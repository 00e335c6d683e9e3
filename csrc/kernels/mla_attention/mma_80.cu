#include "kernels/mla_attention/mma.cuh"

namespace inferx::cuda::mla {
template Error launch_dims<80, 64>(const MlaAttentionParams&, void*);
}
