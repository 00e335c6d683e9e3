"""The metadata of a tiny transformers model, in the way of llama.cpp's converter."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

from inferx.layers.rotary import inverse_frequencies
from inferx.loader.config import RopeConfig

# general.architecture of each model type with experts.
MOE_ARCHITECTURES = {
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "olmoe": "olmoe",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "gpt_oss": "gpt-oss",
}


def write_metadata(
    writer: gguf.GGUFWriter, model: PreTrainedModel, architecture: str, kv_b: bool = False
) -> None:
    """kv_b: as files of DeepSeek before 2025 described their heads."""
    config = model.config
    latent = architecture == "deepseek2"
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    # The converter asks for a vocabulary too; these names are never decoded.
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * config.vocab_size)
    writer.add_token_merges([])
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    rope = config.rope_parameters
    if architecture == "gemma3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    if latent:
        _write_latent(writer, config, kv_b)
        dim = config.qk_rope_head_dim
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(dim)
    if config.model_type in MOE_ARCHITECTURES:
        _write_experts(writer, config)
    _write_scaling(writer, rope, dim, config.max_position_embeddings)


def _write_latent(writer: gguf.GGUFWriter, config: Any, kv_b: bool) -> None:
    key_length = config.qk_nope_head_dim + config.qk_rope_head_dim
    if config.q_lora_rank is not None:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    if kv_b:
        writer.add_head_count_kv(config.num_attention_heads)
        writer.add_key_length(key_length)
        writer.add_value_length(config.v_head_dim)
    else:
        writer.add_head_count_kv(1)
        writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
        writer.add_value_length(config.kv_lora_rank)
        writer.add_key_length_mla(key_length)
        writer.add_value_length_mla(config.v_head_dim)


def _write_experts(writer: gguf.GGUFWriter, config: Any) -> None:
    kind = config.model_type
    count = next(
        getattr(config, name)
        for name in ("n_routed_experts", "num_local_experts", "num_experts")
        if hasattr(config, name)
    )
    writer.add_expert_count(count)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if kind == "gpt_oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    elif kind not in ("mixtral", "olmoe"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if kind == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if kind in ("qwen2_moe", "olmoe") and config.norm_topk_prob:
        writer.add_expert_weights_norm(True)  # the architecture's usual is false
    if kind == "qwen3_moe" and not config.norm_topk_prob:
        writer.add_expert_weights_norm(False)
    if kind == "olmoe" and config.clip_qkv is not None:
        writer.add_clamp_kqv(config.clip_qkv)
    if kind.startswith("deepseek"):
        _write_deepseek(writer, config)


def _write_deepseek(writer: gguf.GGUFWriter, config: Any) -> None:
    v3 = config.model_type == "deepseek_v3"
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if v3:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(config.norm_topk_prob)
    if v3 or config.topk_method == "group_limited_greedy":
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)


def _write_scaling(writer: gguf.GGUFWriter, rope: dict[str, Any], dim: int, context: int) -> None:
    kind = rope["rope_type"]
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if rope.get("mscale_all_dim"):  # readers take mscale to be the same
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    elif kind == "llama3":
        shared = ("rope_theta", "partial_rotary_factor")
        fields = {key: value for key, value in rope.items() if key not in shared}
        scaled = inverse_frequencies(
            RopeConfig(theta=rope["rope_theta"], **fields),
            dim,
            rope["original_max_position_embeddings"],
        )
        plain = inverse_frequencies(RopeConfig(theta=rope["rope_theta"]), dim, context)
        writer.add_tensor("rope_freqs.weight", (plain / scaled).numpy())
    elif kind == "longrope":
        original = rope["original_max_position_embeddings"]
        attention = np.sqrt(1 + np.log(context / original) / np.log(original))
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(attention))
        for length in ("short", "long"):
            factors = torch.tensor(rope[f"{length}_factor"], dtype=torch.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors.numpy())
