// Copies KV cache blocks on the device: one launch for all layers and all pairs.
#pragma once
#include <cstdint>

#include "block_layout.h"
#include "kernels/launch.h"

namespace inferx::cuda {

constexpr int kMaxCopyTensors = 256;  // K and V of 128 layers; keeps the parameters under the classic 4 KB

// Every tensor has the same layout (see block_layout.h), all sizes in bytes.
struct CopyBlocksParams {
  char* bases[kMaxCopyTensors];
  int num_tensors;
  BlockShape shape;
  BlockSteps steps;
  int64_t num_blocks;
  // On the device: num_pairs times (source, destination).  Pairs outside [0, num_blocks) are skipped, since
  // the host cannot look at them; no destination may occur twice or be a source.
  const int64_t* pairs;
  int64_t num_pairs;
};
Error launch_copy_blocks(const CopyBlocksParams& params, void* stream);

}  // namespace inferx::cuda
