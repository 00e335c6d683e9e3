// What the parameters of the device's attention kernels have in common.
#pragma once
#include <algorithm>

#include "bindings/attention_params.h"
#include "kernels/attention/params.h"

namespace inferx {

// As fill_attention_params, with what only kernels that cannot trust the lists' values need.
template <class Args>
void fill_device_attention_params(cuda::PagedAttentionParams& p, const Args& args, const TensorRef& keys) {
  fill_attention_params(p, args, keys);
  p.dtype = args.query.dtype;
  p.max_blocks = args.block_tables.size(1);
  p.num_tokens = args.num_tokens();
  p.num_blocks = keys.size(0);
  p.block_size = std::min<int64_t>(keys.size(1), INT32_MAX / 8 * 8);  // an int; no key lies beyond
}

}  // namespace inferx
