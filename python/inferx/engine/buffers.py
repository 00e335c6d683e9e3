"""Sizes of the buffers that live while a model's layers run, by its configuration (``layers``)."""

from __future__ import annotations

from inferx.loader.config import ModelConfig


def buffer_values(config: ModelConfig) -> int:
    """Elements for each token of a step, what the expert op takes included."""
    return 2 * config.hidden_size + _attention_values(config) + _mlp_values(config)


def attention_scratch(config: ModelConfig) -> int:
    """Elements of one float32 partial result of a token's attention."""
    width = config.head_dim if config.mla is None else config.mla.kv_lora_rank
    return config.num_attention_heads * width


def _attention_values(config: ModelConfig) -> int:
    heads, mla = config.num_attention_heads, config.mla
    if mla is None:
        return 2 * (heads + config.num_key_value_heads) * config.head_dim
    per_head = mla.qk_head_dim + mla.cache_dim + mla.kv_lora_rank + mla.v_head_dim
    return (mla.q_lora_rank or 0) + mla.cache_dim + heads * per_head


def _mlp_values(config: ModelConfig) -> int:
    moe = config.moe
    if moe is None:
        return 3 * config.intermediate_size
    plain = 0 if all(moe.layers) else 3 * config.intermediate_size
    shared = 3 * moe.shared_intermediate_size + config.hidden_size if moe.shared_intermediate_size else 0
    # Logits, then weights and ids, which may be wider than the activations.
    router = 2 * moe.num_experts + 4 * moe.top_k
    # What each chosen expert's two products give.
    pairs = moe.top_k * (moe.intermediate_size + config.hidden_size)
    return plain + shared + router + config.hidden_size + pairs
