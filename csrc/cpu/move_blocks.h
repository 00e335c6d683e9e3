// Moves KV cache blocks between tensors: swap_blocks, gather_blocks, scatter_blocks.
#pragma once
#include "block_layout.h"

namespace inferx::cpu {

// pairs: num_pairs times (block of `from`, block of `to`), in range.  No destination occurs twice.
struct SwapBlocksParams {
  const char* from;
  char* to;
  BlockShape shape;
  BlockSteps from_steps, to_steps;
  const int64_t* pairs;
  int64_t num_pairs;
};
void swap_blocks(const SwapBlocksParams& params);

// Cache c's blocks ids[0 .. num_ids) are the buffer's dense blocks [c * num_ids, (c + 1) * num_ids).  A
// negative id stands for no block: zeros when gathered, skipped when scattered.
struct GatherBlocksParams {
  const BufferedCache* caches;
  int64_t num_caches;
  char* buffer;
  const int64_t* ids;
  int64_t num_ids;
};
void gather_blocks(const GatherBlocksParams& params);
void scatter_blocks(const GatherBlocksParams& params);

}  // namespace inferx::cpu
