// The families of ops.  bind_<family> stands in csrc/bindings/<family>.cpp and is called by module.cpp.
#pragma once
#include <pybind11/pybind11.h>

namespace inferx {

void bind_info(pybind11::module_& m);
void bind_norm(pybind11::module_& m);
void bind_activation(pybind11::module_& m);
void bind_rotary(pybind11::module_& m);
void bind_sampling(pybind11::module_& m);  // sample_tokens, apply_logits_processors, token_logprobs
void bind_copy_blocks(pybind11::module_& m);
void bind_mla(pybind11::module_& m);  // concat_and_cache_mla, mla_attention
void bind_step_program(pybind11::module_& m);
void bind_linear(pybind11::module_& m);     // pack_weight, linear, embedding
void bind_experts(pybind11::module_& m);    // pack_expert, fused_moe_packed, batched_linear
void bind_attention(pybind11::module_& m);  // paged_attention, merge_attn_states
void bind_reshape_and_cache(pybind11::module_& m);
void bind_rope_and_cache(pybind11::module_& m);
void bind_swap_blocks(pybind11::module_& m);
void bind_gather_blocks(pybind11::module_& m);  // gather_blocks, scatter_blocks
void bind_moe_routing(pybind11::module_& m);    // topk_softmax, topk_sigmoid, grouped_topk
void bind_moe_align(pybind11::module_& m);
void bind_moe_sum(pybind11::module_& m);
void bind_token_bitmask(pybind11::module_& m);

}  // namespace inferx
