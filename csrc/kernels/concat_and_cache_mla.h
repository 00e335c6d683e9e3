// Writing the latent vectors and rotary keys of MLA into their paged cache on the device.  See
// csrc/cpu/mla.h.
#pragma once
#include <cstdint>

#include "dtype.h"
#include "kernels/launch.h"

namespace inferx::cuda {

// Rows of [T, length], strides in elements, the last dimension contiguous.
struct MlaRows {
  const void* data;
  int64_t stride_token, length;
};

// Index 0 is kv_c, 1 is k_pe; the cache has their dtype, and rows of their lengths together.
struct ConcatAndCacheMlaParams {
  MlaRows input[2];
  void* kv_cache;
  int64_t cache_stride_block, cache_stride_slot;
  DType dtype;                  // float32, float16, bfloat16
  const int64_t* slot_mapping;  // [T]; slots outside [0, num_slots) are skipped
  // At most 2^31 - 1 slots.
  int64_t num_tokens, block_size, num_slots;
};
Error launch_concat_and_cache_mla(const ConcatAndCacheMlaParams& params, void* stream);

}  // namespace inferx::cuda
