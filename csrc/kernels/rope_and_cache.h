// Rotary embedding of query and key, and the store of key and value into the paged cache, in one launch.
#pragma once
#include "kernels/reshape_and_cache.h"
#include "kernels/rotary.h"

namespace inferx::cuda {

// The result is that of launch_rotary_embedding(rotary) and then launch_reshape_and_cache(store), bit for
// bit.
struct RopeAndCacheParams {
  RotaryParams rotary;          // of query and key
  ReshapeAndCacheParams store;  // of that key, and the value
};
Error launch_rope_and_cache(const RopeAndCacheParams& params, void* stream);

}  // namespace inferx::cuda
