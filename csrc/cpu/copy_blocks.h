// Copies KV cache blocks within each of several tensors.
#pragma once
#include <cstdint>

#include "block_layout.h"

namespace inferx::cpu {

// pairs: num_pairs times (source, destination), block numbers within every cache's range.  No destination may
// occur twice or be a source: the pairs are copied in any order.
struct CopyBlocksParams {
  const BlockLayout* caches;
  int64_t num_caches;
  const int64_t* pairs;
  int64_t num_pairs;
};
void copy_blocks(const CopyBlocksParams& params);

}  // namespace inferx::cpu
