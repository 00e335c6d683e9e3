// Writing the latent vectors and rotary keys of MLA into their paged cache.  Attention over it is
// paged_attention (cpu/attention.h) with one KV head, whose values are the beginnings of its keys.
#pragma once
#include <cstdint>

#include "dtype.h"

namespace inferx::cpu {

// Rows of [T, length]; the last dimension is contiguous.
struct MlaInput {
  const void* data;
  int64_t stride_token, length;
};

struct ConcatAndCacheMlaParams {
  MlaInput kv_c, k_pe;
  void* kv_cache;  // [num_blocks, block_size, kv_c.length + k_pe.length]
  int64_t cache_stride_block, cache_stride_slot;
  DType input_dtype, cache_dtype;  // float32, float16, bfloat16
  const int64_t* slot_mapping;     // [T]; negative skips; otherwise below num_slots
  int64_t num_tokens, block_size, num_slots;
};

void concat_and_cache_mla(const ConcatAndCacheMlaParams& params);

}  // namespace inferx::cpu
