#include "kernels/block_move.cuh"
#include "kernels/copy_blocks.h"

namespace inferx::cuda {
namespace {

using namespace simt;

// CTAs y: the tensors.
template <int kBytes>
__global__ void __launch_bounds__(kMoveThreads)
    copy_blocks_kernel(const __grid_constant__ CopyBlocksParams p, const __grid_constant__ BlockVectors v) {
  const BlockPart part = block_part(v);
  const int64_t source = p.pairs[2 * part.block], destination = p.pairs[2 * part.block + 1];
  if (source < 0 || source >= p.num_blocks || destination < 0 || destination >= p.num_blocks) return;
  char* const base = p.bases[blockIdx.y];
  move_part<kBytes>(v, part.part, base + source * p.steps.block, p.steps, base + destination * p.steps.block,
                    p.steps);
}

}  // namespace

Error launch_copy_blocks(const CopyBlocksParams& p, void* stream) {
  if (p.num_pairs == 0 || p.num_tensors == 0 || p.shape.bytes() == 0) return kSuccess;
  uint64_t bits = alignment_bits(p.shape, p.steps);
  for (int i = 0; i < p.num_tensors; ++i) bits |= alignment_bits(p.bases[i]);
  return dispatch_vectors(p.shape, bits, [&](auto width, const BlockVectors& v) {
    dim3 grid;
    if (!move_grid(p.num_pairs, p.num_tensors, v, &grid)) return kInvalidValue;
    return launch(copy_blocks_kernel<decltype(width)::value>, grid, dim3(kMoveThreads), 0, stream, p, v);
  });
}

}  // namespace inferx::cuda
