// What a binding hands to the launchers of latent attention.
#pragma once
#include "kernels/attention/params.h"

namespace inferx::cuda {

// Keys of one split, counted from position 0.  Splits are joined in order wherever they are read, so a row's
// bits depend neither on who reads them nor on how a prompt was cut into chunks.
constexpr int64_t kMlaSplit = 512;

// One KV head whose values are the beginnings of its keys: head_dim is the keys' (latent and rotary part).
// The value_* fields and those of options that latent attention does not have (window, softcap, sinks,
// scales) stay as they are.  partial_out is [max_partials, value_dim].
struct MlaAttentionParams : PagedAttentionParams {
  int64_t value_dim;
  // Filled in by the launcher: query rows that a CTA takes at once, and what mla_split_rows gives.
  int unit_rows = 0, split_rows = 0;
};

// Requests with at most so many query rows may be read by several CTAs, a split each.
constexpr int64_t mla_split_rows(int64_t num_heads) {
  return num_heads > 64 ? num_heads : 64 / num_heads * num_heads;
}

// Tensor cores: 16-bit types, rows that begin at multiples of 16 bytes, block sizes that are multiples of 8.
constexpr bool has_mla_tensor_cores(DType dtype, int64_t head_dim, int64_t value_dim) {
  return dtype != DType::f32 && ((head_dim == 576 && value_dim == 512) ||  // DeepSeek V2 and V3, Kimi K2
                                 (head_dim == 288 && value_dim == 256) ||  // MiniCPM3
                                 (head_dim == 80 && value_dim == 64));     // small models for tests
}
Error launch_mla_attention_mma(const MlaAttentionParams& params, void* stream);

// Plain float32 arithmetic: any types and dimensions up to 1024.
Error launch_mla_attention_exact(const MlaAttentionParams& params, void* stream);

}  // namespace inferx::cuda
