// Requests of many query rows: which kernel runs.  See prefill.cuh.
#include "kernels/attention/prefill.cuh"

namespace inferx::cuda {

Error launch_paged_attention_prefill(const PagedAttentionParams& p, void* stream) {
  if (p.batch == 0 || p.num_tokens == 0) return kSuccess;
  switch (padded_head_dim(p.head_dim)) {
    case 64:
      return prefill::launch_head_dim<64>(p, stream);
    case 80:
      return prefill::launch_head_dim<80>(p, stream);
    case 96:
      return prefill::launch_head_dim<96>(p, stream);
    case 128:
      return prefill::launch_head_dim<128>(p, stream);
    default:
      return p.head_dim <= 256 ? prefill::launch_head_dim<256>(p, stream) : kInvalidValue;
  }
}

}  // namespace inferx::cuda
