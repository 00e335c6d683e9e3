// Writing new keys and values into the paged cache on the device.  See csrc/cpu/reshape_and_cache.h.
#pragma once
#include <cstdint>

#include "dtype.h"
#include "kernels/launch.h"

namespace inferx::cuda {

// [T, heads, dim] and [blocks, block_size, heads, dim], strides in elements, the last dimension contiguous.
struct TokenRows {
  void* data;
  int64_t stride_token, stride_head;
};
struct CacheRows {
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
  TokenRows input[2];
  CacheRows cache[2];
  CacheScale scale[2];
  DType input_dtype, cache_dtype;  // float32, float16, bfloat16; the cache also float8_e4m3fn
  const int64_t* slot_mapping;     // [T]; slots outside [0, num_slots) are skipped
  // At most 2^31 - 1 slots.
  int64_t num_tokens, num_heads, head_dim, block_size, num_slots;
};
Error launch_reshape_and_cache(const ReshapeAndCacheParams& params, void* stream);

}  // namespace inferx::cuda
