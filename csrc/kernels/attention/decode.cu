// Requests of few query rows: which kernels run.  See decode_kernel.cuh.
#include "kernels/attention/combine.h"
#include "kernels/attention/decode_kernel.cuh"
#include "kernels/attention/params.h"

namespace inferx::cuda {

Error launch_paged_attention_decode(const PagedAttentionParams& params, void* stream) {
  PagedAttentionParams p = params;
  if (p.batch == 0 || p.num_tokens == 0) return kSuccess;
  if (p.split_size < kTile || p.split_size % kTile != 0 || p.block_size % kOctet != 0) return kInvalidValue;
  p.group = static_cast<int>(p.num_heads / p.num_kv_heads);
  p.split_tiles = static_cast<int>(p.split_size / kTile);
  const auto go = [&] {
    switch (padded_head_dim(p.head_dim)) {
      case 64:
        return decode::launch_head_dim<64>(p, stream);
      case 80:
        return decode::launch_head_dim<80>(p, stream);
      case 96:
        return decode::launch_head_dim<96>(p, stream);
      case 128:
        return decode::launch_head_dim<128>(p, stream);
      default:
        return decode::launch_head_dim<256>(p, stream);
    }
  };
  const Error error = go();
  const bool several_splits = p.max_blocks * p.block_size > p.split_size;
  return error != kSuccess || p.plan == nullptr || !several_splits ? error : launch_combine_splits(p, stream);
}

}  // namespace inferx::cuda
