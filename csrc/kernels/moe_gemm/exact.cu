// The experts' matrix products in float32 arithmetic: what float32 models run on.  An element is one chain of
// fused multiply-adds in order of K, whatever the tile.
#include "kernels/moe_gemm/epilogue.cuh"
#include "kernels/moe_gemm/tile.cuh"

namespace inferx::cuda {
namespace moe_gemm {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kTokens = kExactTokens, kTokensOfWarp = kTokens / kWarps;
constexpr int kRows = 64;  // of weights: two a lane; gated: a gate and its up
constexpr int kSlice = 32;
constexpr int kStride = kSlice + 1;  // lanes read different rows, in different banks

template <bool kGated>
__global__ void __launch_bounds__(kThreads) moe_gemm_exact_kernel(const __grid_constant__ MoeGemmParams p) {
  constexpr int kColumns = kGated ? kRows / 2 : kRows;
  SHARED(TokenTile<kTokens>, tile, );
  SHARED(float, weights, [kRows][kStride]);
  SHARED(float, input, [kTokens][kStride]);
  const unsigned column_tiles = static_cast<unsigned>((p.columns + kColumns - 1) / kColumns);
  const int index = static_cast<int>(blockIdx.x / column_tiles);
  const int64_t first_column = static_cast<int64_t>(blockIdx.x % column_tiles) * kColumns;
  clear_missing<float, kTokens>(p, index, first_column, first_column + kColumns);
  const int expert = find_tile(p, index, tile);
  if (expert < 0) return;  // the whole CTA
  __syncthreads();

  const int lane = lane_id(), warp = threadIdx.x / 32;
  const float* expert_weights = static_cast<const float*>(p.weight) + expert * p.weight_stride_expert;
  float sums[kTokensOfWarp][2] = {};
  for (int first = 0; first < p.k; first += kSlice) {
    const int k = first + lane;
    for (int row = warp; row < kRows; row += kWarps) {
      const int64_t column = first_column + (kGated ? row % kColumns : row);
      const int64_t at = kGated && row >= kColumns ? column + p.columns : column;
      const bool there = column < p.columns && k < p.k;
      weights[row][lane] = there ? expert_weights[at * p.weight_stride_row + k] : 0.0f;
    }
    for (int token = warp; token < kTokens; token += kWarps) {
      const bool there = tile.pair[token] >= 0 && k < p.k;
      input[token][lane] = there ? static_cast<const float*>(p.input)[tile.input_at[token] + k] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kTokensOfWarp; ++t) {
      const int token = warp + t * kWarps;
      if (tile.pair[token] < 0) continue;
#pragma unroll 8
      for (int i = 0; i < kSlice; ++i) {
        sums[t][0] = fmaf(weights[lane][i], input[token][i], sums[t][0]);
        sums[t][1] = fmaf(weights[lane + 32][i], input[token][i], sums[t][1]);
      }
    }
    __syncthreads();  // the slice has been used
  }

#pragma unroll
  for (int t = 0; t < kTokensOfWarp; ++t) {
    const int token = warp + t * kWarps, pair = tile.pair[token];
    if (pair < 0) continue;
    float* out = static_cast<float*>(p.out) + pair * p.out_stride;
#pragma unroll
    for (int half = 0; half < (kGated ? 1 : 2); ++half) {
      const int64_t column = first_column + lane + half * 32;
      if (column >= p.columns) continue;
      out[column] = finish<float, kGated>(p, expert, column, sums[t][half], sums[t][1], tile.scale[token]);
    }
  }
}

}  // namespace
}  // namespace moe_gemm

Error launch_moe_gemm_exact(const MoeGemmParams& p, void* stream) {
  using namespace moe_gemm;
  if (p.sorted_token_ids != nullptr && p.block_size != kTokens) return kInvalidValue;
  const bool gated = p.activation != MoeActivation::none;
  const int64_t grid = grid_size(p, gated ? kRows / 2 : kRows);
  if (grid > INT32_MAX) return kInvalidValue;
  return launch(gated ? moe_gemm_exact_kernel<true> : moe_gemm_exact_kernel<false>,
                dim3(static_cast<unsigned>(grid)), dim3(kThreads), 0, stream, p);
}

}  // namespace inferx::cuda
