// What the parameters of every attention kernel have in common, from the arguments of its op.
#pragma once
#include <type_traits>

#include "bindings/tensor_ref.h"

namespace inferx {

// Params: cpu::AttentionParams, cuda::PagedAttentionParams or what derives from it.  Args: as in checks/.
// keys: the key cache, [num_blocks, block_size, ...].  The number of KV heads and what belongs to the values
// is the caller's.
template <class Params, class Args>
void fill_attention_params(Params& p, const Args& args, const TensorRef& keys) {
  p.query = args.query.template ptr<std::remove_pointer_t<decltype(p.query)>>();
  p.query_stride_token = args.query.stride(0);
  p.query_stride_head = args.query.stride(1);
  p.out = args.out.template ptr<std::remove_pointer_t<decltype(p.out)>>();
  p.out_stride_token = args.out.stride(0);
  p.out_stride_head = args.out.stride(1);
  if (args.lse.given) {
    p.lse = args.lse.template ptr<float>();
    p.lse_stride_token = args.lse.tensor.stride(0);
    p.lse_stride_head = args.lse.tensor.stride(1);
  }
  p.key_cache = keys.data;
  p.key_stride_block = keys.stride(0);
  p.key_stride_slot = keys.stride(1);
  p.cache_dtype = keys.dtype;
  p.block_tables = args.block_tables.template ptr<int32_t>();
  p.block_tables_stride = args.block_tables.stride(0);
  p.cu_seqlens_q = args.cu_seqlens_q.template ptr<int32_t>();
  p.seq_lens = args.seq_lens.template ptr<int32_t>();
  p.batch = args.batch();
  p.num_heads = args.num_heads();
  p.head_dim = args.query.size(2);
  p.block_size = keys.size(1);
  p.scale = static_cast<float>(args.scale);
}

}  // namespace inferx
