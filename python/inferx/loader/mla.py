"""What loaders of both formats do for multi-head latent attention."""

from __future__ import annotations

import math

from inferx.loader.config import MLAConfig, ModelConfig, RopeConfig
from inferx.loader.transforms import RotaryRows


def query_scalar(rope: RopeConfig, mla: MLAConfig) -> float | None:
    """``query_pre_attn_scalar``: DeepSeek multiplies the scale of the scores by the square of YaRN's factor
    for mscale_all_dim.  None: there is none."""
    if rope.rope_type == "default" or not rope.mscale_all_dim or rope.factor <= 1:
        return None
    mscale = 0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0
    return float(mla.qk_head_dim / mscale**4)


def rotary_rows(stem: str, config: ModelConfig) -> RotaryRows | None:
    """The rows of a projection that rotate, which DeepSeek stores in pairs; None for all others.

    stem: canonical name without ``.weight``.
    """
    mla = config.mla
    if mla is None:
        return None
    if stem.endswith(".self_attn.kv_a_proj_with_mqa"):
        return RotaryRows(1, mla.kv_lora_rank, mla.qk_rope_head_dim, mla.cache_dim)
    if stem.endswith(".self_attn.q_b_proj" if mla.q_lora_rank else ".self_attn.q_proj"):
        return RotaryRows(
            config.num_attention_heads, mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.qk_head_dim
        )
    return None
