// Blocks of all caches into one buffer and back, one launch for all.
#pragma once
#include <cstdint>

#include "block_layout.h"
#include "kernels/launch.h"

namespace inferx::cuda {

constexpr int kMaxGatherTensors = 256;  // K and V of 128 layers; keeps the parameters under the classic 4 KB

// Every cache lies in memory alike.  Cache c's blocks ids[0 .. num_ids) are the buffer's dense blocks
// [c * num_ids, (c + 1) * num_ids).
struct GatherBlocksParams {
  char* bases[kMaxGatherTensors];
  int num_tensors;
  char* buffer;
  BlockShape shape;
  BlockSteps steps, buffer_steps;
  int64_t num_blocks;
  // On the device.  Ids outside [0, num_blocks) stand for no block: zeros when gathered, skipped when
  // scattered.  When scattered each block occurs once.
  const int64_t* ids;
  int64_t num_ids;
};
Error launch_gather_blocks(const GatherBlocksParams& params, void* stream);
Error launch_scatter_blocks(const GatherBlocksParams& params, void* stream);

}  // namespace inferx::cuda
