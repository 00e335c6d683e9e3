// Writing new keys and values into the paged cache.
#pragma once
#include <cstdint>

#include "cpu/isa.h"
#include "dtype.h"

namespace inferx::cpu {

// Rows of [T, heads, dim] (input) or [N, B, heads, dim] (cache); the last dimension is contiguous.
struct CacheInput {
  const void* data;
  int64_t stride_token, stride_head;
};
struct CacheOutput {
  void* data;
  int64_t stride_block, stride_slot, stride_head;
};

// What a float8 cache's values are divided by: head * stride is a head's; null for other caches, and for 1.
struct CacheScale {
  const float* data;
  int64_t stride;
};

// Index 0 is the key, 1 the value.
struct ReshapeAndCacheParams {
  CacheInput input[2];
  CacheOutput cache[2];
  CacheScale scale[2];
  DType input_dtype, cache_dtype;  // float32, float16, bfloat16; the cache also float8_e4m3fn
  const int64_t* slot_mapping;     // [T]; negative skips; otherwise below num_slots
  int64_t num_tokens, num_heads, head_dim, block_size, num_slots;
};

struct ReshapeAndCacheKernels {
  // Stores input[which] into cache[which]; concat_and_cache_mla has rows of other lengths for the two.
  void (*store)(const ReshapeAndCacheParams& params, int which, int64_t first_token, int64_t end_token);
};
INFERX_DECLARE_KERNELS(ReshapeAndCacheKernels, reshape_and_cache_kernels)

void reshape_and_cache_flash(const ReshapeAndCacheParams& params);

}  // namespace inferx::cpu
