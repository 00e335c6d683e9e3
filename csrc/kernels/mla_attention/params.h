// What a binding hands to the launchers of latent attention.
#pragma once
#include "kernels/attention/params.h"

namespace inferx::cuda {

// Keys of one split, counted from position 0.  Splits are joined in order wherever they are read, so a row's
// bits do not depend on who reads them.
constexpr int64_t kMlaSplit = 512;

// One KV head whose values are the beginnings of its keys: head_dim is the keys' (latent and rotary part),
// the value_* fields and those of options that latent attention does not have (window, softcap, sinks,
// scales) are not used.  partial_out is [max_partials, value_dim].
struct MlaAttentionParams : PagedAttentionParams {
  int64_t value_dim;
};

// Plain float32 arithmetic: any types and dimensions up to 1024.
Error launch_mla_attention_exact(const MlaAttentionParams& params, void* stream);

}  // namespace inferx::cuda
