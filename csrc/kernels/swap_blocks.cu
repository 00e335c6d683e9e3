#include "kernels/block_move.cuh"
#include "kernels/swap_blocks.h"

namespace inferx::cuda {
namespace {

using namespace simt;

template <int kBytes>
__global__ void __launch_bounds__(kMoveThreads)
    swap_blocks_kernel(const __grid_constant__ SwapBlocksParams p, const __grid_constant__ BlockVectors v) {
  const BlockPart part = block_part(v);
  move_part<kBytes>(v, part.part, p.from + p.pairs[part.block][0] * p.from_steps.block, p.from_steps,
                    p.to + p.pairs[part.block][1] * p.to_steps.block, p.to_steps);
}

}  // namespace

Error launch_swap_blocks(const SwapBlocksParams& p, void* stream) {
  if (p.num_pairs == 0 || p.shape.bytes() == 0) return kSuccess;
  if (p.num_pairs > kMaxSwapPairs) return kInvalidValue;
  const uint64_t bits = alignment_bits(p.shape, p.from_steps) | alignment_bits(p.shape, p.to_steps) |
                        alignment_bits(p.from) | alignment_bits(p.to);
  return dispatch_vectors(p.shape, bits, [&](auto width, const BlockVectors& v) {
    dim3 grid;
    if (!move_grid(p.num_pairs, 1, v, &grid)) return kInvalidValue;
    return launch(swap_blocks_kernel<decltype(width)::value>, grid, dim3(kMoveThreads), 0, stream, p, v);
  });
}

}  // namespace inferx::cuda
