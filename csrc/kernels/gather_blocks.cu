#include "kernels/block_move.cuh"
#include "kernels/gather_blocks.h"

namespace inferx::cuda {
namespace {

using namespace simt;

// CTAs y: the caches.
template <int kBytes, bool kGather>
__global__ void __launch_bounds__(kMoveThreads)
    gather_blocks_kernel(const __grid_constant__ GatherBlocksParams p,
                         const __grid_constant__ BlockVectors v) {
  const BlockPart part = block_part(v);
  const int64_t id = p.ids[part.block];
  const bool exists = id >= 0 && id < p.num_blocks;
  char* const cached = exists ? p.bases[blockIdx.y] + id * p.steps.block : nullptr;
  char* const buffered = p.buffer + (blockIdx.y * p.num_ids + part.block) * p.buffer_steps.block;
  if constexpr (kGather) {
    move_part<kBytes>(v, part.part, cached, p.steps, buffered, p.buffer_steps);
  } else {
    if (exists) move_part<kBytes>(v, part.part, buffered, p.buffer_steps, cached, p.steps);
  }
}

template <bool kGather>
Error launch_move(const GatherBlocksParams& p, void* stream) {
  if (p.num_ids == 0 || p.num_tensors == 0 || p.shape.bytes() == 0) return kSuccess;
  uint64_t bits =
      alignment_bits(p.shape, p.steps) | alignment_bits(p.shape, p.buffer_steps) | alignment_bits(p.buffer);
  for (int i = 0; i < p.num_tensors; ++i) bits |= alignment_bits(p.bases[i]);
  return dispatch_vectors(p.shape, bits, [&](auto width, const BlockVectors& v) {
    dim3 grid;
    if (!move_grid(p.num_ids, p.num_tensors, v, &grid)) return kInvalidValue;
    return launch(gather_blocks_kernel<decltype(width)::value, kGather>, grid, dim3(kMoveThreads), 0, stream,
                  p, v);
  });
}

}  // namespace

Error launch_gather_blocks(const GatherBlocksParams& p, void* stream) { return launch_move<true>(p, stream); }
Error launch_scatter_blocks(const GatherBlocksParams& p, void* stream) {
  return launch_move<false>(p, stream);
}

}  // namespace inferx::cuda
