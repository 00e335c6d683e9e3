"""Refuses configurations that the layers cannot run, before any weight is read."""

from __future__ import annotations

import torch

from inferx.errors import LoadError
from inferx.layers.mlp import GATED_ACTIVATIONS
from inferx.layers.rotary import attention_scaling, rotary_dim
from inferx.loader.config import MLAConfig, ModelConfig, MoEConfig, RopeConfig
from inferx.models.rotaries import attention_scale, rotary_head_dim

# What the attention ops take.
HEAD_DIM_MULTIPLE, MAX_HEAD_DIM, MAX_LATENT_DIM = 8, 256, 1024
# What the routing ops take.
MAX_EXPERTS, MAX_TOP_K, MAX_GROUPS = 512, 32, 32
# Of experts only: a plain MLP has no op for it.
EXPERT_ACTIVATIONS = ("swigluoai",)
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
LAYER_TYPES = ("full_attention", "sliding_attention")
POSITIVE_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


def validate_config(config: ModelConfig, source: str, parts: tuple[str, ...] = ()) -> None:
    """source: the checkpoint's path, for messages.  parts: of "moe" and "mla", those that the family knows.
    Raises LoadError naming the field and its value."""

    def require(condition: bool, message: str) -> None:
        if not condition:
            raise LoadError(f"{source}: {message}")

    for name in POSITIVE_FIELDS:
        value = getattr(config, name)
        require(value >= 1, f"{name} must be at least 1, got {value}")
    require(
        config.num_attention_heads % config.num_key_value_heads == 0,
        f"num_attention_heads ({config.num_attention_heads}) must be a multiple of num_key_value_heads "
        f"({config.num_key_value_heads})",
    )
    for part in ("moe", "mla"):
        given = getattr(config, part) is not None
        require(not given or part in parts, f"{part} must not be set for {config.architecture}")
    require(config.mla is not None or "mla" not in parts, f"mla must be set for {config.architecture}")
    require(
        config.mla is not None
        or (config.head_dim % HEAD_DIM_MULTIPLE == 0 and config.head_dim <= MAX_HEAD_DIM),
        f"head_dim must be a multiple of {HEAD_DIM_MULTIPLE} up to {MAX_HEAD_DIM}, got {config.head_dim}",
    )
    require(config.rms_norm_eps >= 0, f"rms_norm_eps must not be negative, got {config.rms_norm_eps}")
    activations = (*GATED_ACTIVATIONS, *(EXPERT_ACTIVATIONS if _has_experts_only(config) else ()))
    require(
        config.hidden_act in activations,
        f"hidden_act must be one of {', '.join(activations)}, got {config.hidden_act!r}",
    )
    require(
        config.clip_qkv is None or config.clip_qkv > 0, f"clip_qkv must be above 0, got {config.clip_qkv}"
    )
    if config.moe is not None:
        _validate_moe(config.moe, config.num_hidden_layers, source)
    if config.mla is not None:
        _validate_mla(config.mla, source)
    _validate_windows(config, source)
    for name, rope in (("rope", config.rope), ("rope_local", config.rope_local)):
        if rope is not None:
            _validate_rope(rope, name, rotary_head_dim(config), source)
            _validate_scale(config, rope, name, source)


def _has_experts_only(config: ModelConfig) -> bool:
    moe = config.moe
    return moe is not None and all(moe.layers) and not moe.shared_intermediate_size


def _validate_moe(moe: MoEConfig, num_layers: int, source: str) -> None:
    def require(condition: bool, message: str) -> None:
        if not condition:
            raise LoadError(f"{source}: moe: {message}")

    count = moe.num_experts
    require(1 <= count <= MAX_EXPERTS, f"num_experts must be from 1 to {MAX_EXPERTS}, got {count}")
    require(1 <= moe.top_k <= count, f"top_k must be from 1 to num_experts ({count}), got {moe.top_k}")
    require(moe.top_k <= MAX_TOP_K, f"top_k must be at most {MAX_TOP_K}, got {moe.top_k}")
    require(moe.intermediate_size >= 1, f"intermediate_size must be at least 1, got {moe.intermediate_size}")
    require(len(moe.layers) == num_layers, f"layers has {len(moe.layers)} entries for {num_layers} layers")
    require(moe.scoring in ("softmax", "sigmoid"), f"scoring must be softmax or sigmoid, got {moe.scoring!r}")
    groups, top = moe.num_groups, moe.top_groups
    require(
        groups >= 1 and count % groups == 0, f"num_groups must divide num_experts ({count}), got {groups}"
    )
    require(groups <= MAX_GROUPS, f"num_groups must be at most {MAX_GROUPS}, got {groups}")
    require(1 <= top <= groups, f"top_groups must be from 1 to num_groups ({groups}), got {top}")
    require(
        moe.top_k <= count // groups * top,
        f"top_k ({moe.top_k}) must be at most the experts of top_groups ({top}) groups, "
        f"{count // groups * top}",
    )
    # A group's score is then the sum of its two best experts'.
    require(
        groups == 1 or not moe.score_bias or count // groups >= 2,
        f"num_groups ({groups}) leaves less than 2 of {count} experts to a group",
    )
    shared = moe.shared_intermediate_size
    require(shared >= 0, f"shared_intermediate_size must not be negative, got {shared}")
    require(bool(shared) or not moe.shared_gate, "shared_gate is set, but there is no shared expert")


def _validate_mla(mla: MLAConfig, source: str) -> None:
    def require(condition: bool, message: str) -> None:
        if not condition:
            raise LoadError(f"{source}: mla: {message}")

    for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        value = getattr(mla, name)
        require(value >= 1, f"{name} must be at least 1, got {value}")
    require(
        mla.q_lora_rank is None or mla.q_lora_rank >= 1,
        f"q_lora_rank must be at least 1, got {mla.q_lora_rank}",
    )
    require(
        mla.kv_lora_rank % HEAD_DIM_MULTIPLE == 0,
        f"kv_lora_rank must be a multiple of {HEAD_DIM_MULTIPLE}, got {mla.kv_lora_rank}",
    )
    require(
        mla.cache_dim % HEAD_DIM_MULTIPLE == 0 and mla.cache_dim <= MAX_LATENT_DIM,
        f"kv_lora_rank + qk_rope_head_dim must be a multiple of {HEAD_DIM_MULTIPLE} up to {MAX_LATENT_DIM}, "
        f"got {mla.cache_dim}",
    )


def _validate_windows(config: ModelConfig, source: str) -> None:
    kinds = config.layer_types
    if kinds and len(kinds) != config.num_hidden_layers:
        raise LoadError(
            f"{source}: layer_types has {len(kinds)} entries for {config.num_hidden_layers} layers"
        )
    for kind in kinds:
        if kind not in LAYER_TYPES:
            raise LoadError(f"{source}: layer_types must hold {' or '.join(LAYER_TYPES)}, got {kind!r}")
    window = config.sliding_window
    if window is not None and window < 1:
        raise LoadError(f"{source}: sliding_window must be at least 1, got {window}")
    if window is None and "sliding_attention" in kinds:
        raise LoadError(f"{source}: layer_types has sliding_attention layers but sliding_window is not set")


def _validate_rope(rope: RopeConfig, name: str, head_dim: int, source: str) -> None:
    if rope.rope_type not in ROPE_TYPES:
        raise LoadError(
            f"{source}: {name}: rope_type must be one of {', '.join(ROPE_TYPES)}, got {rope.rope_type!r}"
        )
    dim = rotary_dim(rope, head_dim)
    if not 0 < dim <= head_dim or dim % 2:
        raise LoadError(
            f"{source}: {name}: partial_rotary_factor {rope.partial_rotary_factor} of head_dim {head_dim} "
            f"gives {dim} rotating elements; expected an even number up to head_dim"
        )
    if rope.theta <= 1 or rope.factor <= 0:
        raise LoadError(
            f"{source}: {name}: theta must be above 1 and factor above 0, got {rope.theta} and {rope.factor}"
        )
    if rope.rope_type == "dynamic" and dim < 4:
        raise LoadError(f"{source}: {name}: dynamic scaling needs at least 4 rotating elements, got {dim}")
    if rope.rope_type in ("llama3", "yarn", "longrope") and not rope.original_max_position_embeddings:
        raise LoadError(f"{source}: {name}: {rope.rope_type} needs original_max_position_embeddings")
    for field in ("short_factor", "long_factor", "freq_factors"):
        length = len(getattr(rope, field))
        needed = rope.rope_type == "longrope" and field != "freq_factors"
        if length != dim // 2 and (length or needed):
            raise LoadError(f"{source}: {name}: {field} must have {dim // 2} entries, got {length}")
    if rope.rope_type == "llama3" and rope.high_freq_factor == rope.low_freq_factor:
        raise LoadError(f"{source}: {name}: low_freq_factor and high_freq_factor must differ")


def _validate_scale(config: ModelConfig, rope: RopeConfig, name: str, source: str) -> None:
    """Of the scores, with the factor that scalings of rotary embedding put on queries and keys."""
    factor = attention_scaling(rope, rope.original_max_position_embeddings or config.max_position_embeddings)
    scale = attention_scale(config) * factor * factor
    if not scale <= torch.finfo(torch.float32).max:
        fields = ("factor", "attention_factor", "mscale", "mscale_all_dim")
        shown = ", ".join(f"{field} {getattr(rope, field)}" for field in fields)
        raise LoadError(
            f"{source}: {name}: expected a scale of attention's scores in float32's range, got {scale:.4g} "
            f"({shown}, query_pre_attn_scalar {config.query_pre_attn_scalar})"
        )
