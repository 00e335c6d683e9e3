// What a binding hands to the launchers of the experts' matrix products.  Strides are in elements; last
// dimensions are contiguous.
#pragma once
#include "dtype.h"
#include "kernels/launch.h"

namespace inferx::cuda {

// What becomes of the products: none leaves them; the others join a gate row and an up row to one column.
enum class MoeActivation { none, silu, gelu, gelu_tanh, swigluoai };

// Pair i = token * top_k + choice is one token at one of its experts, e = topk_ids[i]:
//   out[i] = topk_weights[i] * activation(weight[e] input[i / pairs_per_row] + bias[e])
// A pair whose expert lies outside of [0, num_experts) gets zeros.
struct MoeGemmParams {
  DType dtype;        // of input, weight and out: f16 or bf16 (tensor cores), or f32
  const void* input;  // [num_pairs / pairs_per_row, k]
  int64_t input_stride, pairs_per_row;
  const void* weight;  // [num_experts, N, k]; N = columns, or 2 columns with an activation: gates, then ups
  int64_t weight_stride_expert, weight_stride_row;
  const void* bias;  // [num_experts, N] or null
  int64_t bias_stride_expert;
  bool bias_f32;  // or of `dtype`
  void* out;      // [num_pairs, columns]
  int64_t out_stride;
  const int32_t* topk_ids;    // [num_pairs]
  const float* topk_weights;  // [num_pairs], or null: 1
  int64_t num_pairs, num_experts, columns, k;

  MoeActivation activation;
  float swiglu_alpha, swiglu_limit;

  // Tiles of block_size pairs of one expert each, as moe_align_block_size finds them.  Null: each CTA finds
  // its own, which spares a launch where pairs are few.
  const int32_t* sorted_token_ids;  // [num_places], padding is outside of [0, num_pairs)
  const int32_t* expert_ids;        // [num_blocks]
  const int32_t* num_tokens_post_padded;
  int64_t num_places, num_blocks, block_size;
};

// Pairs of a tile in float32, and in 16 bits where CTAs find their own.
constexpr int kExactTokens = 16, kFewTokens = 8;

// f16, bf16 (tensor_core.cuh): block_size 8, 16, 32, 64 or 128; k and columns multiples of 8; rows of input,
// weight and out at multiples of 16 bytes.  f32 (exact.cu): block_size kExactTokens.
Error launch_moe_gemm(const MoeGemmParams& params, void* stream);
Error launch_moe_gemm_exact(const MoeGemmParams& params, void* stream);

}  // namespace inferx::cuda
