"""Which rotary embedding each layer of a model has, and the scale of the scores that it may change."""

from __future__ import annotations

import math

from inferx.layers.rotary import RotaryEmbedding
from inferx.layers.rotary_device import table_bytes
from inferx.loader.config import ModelConfig


def rotary_head_dim(config: ModelConfig) -> int:
    """Elements of a head that rotary is given."""
    return config.head_dim if config.mla is None else config.mla.qk_rope_head_dim


def attention_scale(config: ModelConfig) -> float:
    """Of query . key.  With YaRN, DeepSeek's factor for long contexts is in it, once for either side."""
    mla, rope = config.mla, config.rope
    if mla is None:
        return float((config.query_pre_attn_scalar or config.head_dim) ** -0.5)
    scale = float(mla.qk_head_dim**-0.5)
    if rope.rope_type == "default" or not rope.mscale_all_dim or rope.factor <= 1:
        return scale
    mscale = 0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0
    return scale * mscale * mscale


def layer_rotaries(config: ModelConfig) -> list[RotaryEmbedding]:
    """One for each layer; layers with the same parameters share it."""
    shared, local = _rotaries(config)
    return [local if config.window_of(i) else shared for i in range(config.num_hidden_layers)]


def rotary_table_bytes(config: ModelConfig, max_model_len: int) -> int:
    """Bytes of the tables that ``Decoder.prepare`` makes, at most."""
    return sum(table_bytes(rotary, max_model_len) for rotary in dict.fromkeys(_rotaries(config)))


def _rotaries(config: ModelConfig) -> tuple[RotaryEmbedding, RotaryEmbedding]:
    """Of layers that see everything, and of those with a window."""
    dim = rotary_head_dim(config)
    shared = RotaryEmbedding(config.rope, dim, config.max_position_embeddings)
    if config.rope_local is None:
        return shared, shared
    return shared, RotaryEmbedding(config.rope_local, dim, config.max_position_embeddings)
