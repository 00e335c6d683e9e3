#include "cpu/mla.h"

#include "cpu/parallel.h"
#include "cpu/reshape_and_cache.h"

namespace inferx::cpu {
namespace {

// One input as a key of one head, into the columns of the cache from `column` on.
ReshapeAndCacheParams store_of(const ConcatAndCacheMlaParams& p, const MlaInput& input, int64_t column) {
  ReshapeAndCacheParams store{};
  store.input[0] = {input.data, input.stride_token, 0};
  const int64_t offset = column * static_cast<int64_t>(dtype_size(p.cache_dtype));
  store.cache[0] = {static_cast<char*>(p.kv_cache) + offset, p.cache_stride_block, p.cache_stride_slot, 0};
  store.input_dtype = p.input_dtype;
  store.cache_dtype = p.cache_dtype;
  store.slot_mapping = p.slot_mapping;
  store.num_tokens = p.num_tokens;
  store.num_heads = 1;
  store.head_dim = input.length;
  store.block_size = p.block_size;
  store.num_slots = p.num_slots;
  return store;
}

}  // namespace

void concat_and_cache_mla(const ConcatAndCacheMlaParams& params) {
  const ReshapeAndCacheKernels& kernels = reshape_and_cache_kernels();
  const ReshapeAndCacheParams latent = store_of(params, params.kv_c, 0),
                              rotary = store_of(params, params.k_pe, params.kv_c.length);
  const int64_t row = params.kv_c.length + params.k_pe.length;
  parallel_for(params.num_tokens, 65536 / (row + 1) + 1, [&](int64_t begin, int64_t end) {
    kernels.store(latent, 0, begin, end);
    kernels.store(rotary, 0, begin, end);
  });
}

}  // namespace inferx::cpu
