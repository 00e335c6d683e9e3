#include "cpu/reshape_and_cache.h"

#include <algorithm>

#include "cpu/parallel.h"

namespace inferx::cpu {

INFERX_SELECT_KERNELS(ReshapeAndCacheKernels, reshape_and_cache_kernels)

void reshape_and_cache_flash(const ReshapeAndCacheParams& params) {
  const ReshapeAndCacheKernels& kernels = reshape_and_cache_kernels();
  const int64_t token_elements = std::max<int64_t>(2 * params.num_heads * params.head_dim, 1);
  parallel_for(params.num_tokens, 65536 / token_elements + 1, [&](int64_t begin, int64_t end) {
    for (int which = 0; which < 2; ++which) kernels.store(params, which, begin, end);
  });
}

}  // namespace inferx::cpu
