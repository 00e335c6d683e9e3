// Copies blocks from one tensor into another, one of which may lie in host memory that the device can reach.
#pragma once
#include <cstdint>

#include "block_layout.h"
#include "kernels/launch.h"

namespace inferx::cuda {

// Pairs travel with the launch, so that they need no memory of their own on the device and the call can be
// part of a CUDA graph; more pairs are more launches.
constexpr int kMaxSwapPairs = 224;  // keeps the parameters under the classic 4 KB

struct SwapBlocksParams {
  const char* from;
  char* to;
  BlockShape shape;
  BlockSteps from_steps, to_steps;
  int64_t pairs[kMaxSwapPairs][2];  // (block of `from`, block of `to`), in range
  int num_pairs;
};
Error launch_swap_blocks(const SwapBlocksParams& params, void* stream);

}  // namespace inferx::cuda
