"""Refuses configurations that the layers cannot run, before any weight is read."""

from __future__ import annotations

from inferx.errors import LoadError
from inferx.layers.mlp import GATED_ACTIVATIONS
from inferx.layers.rotary import rotary_dim
from inferx.loader.config import ModelConfig, RopeConfig

# What the attention op takes.
HEAD_DIM_MULTIPLE, MAX_HEAD_DIM = 8, 256
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


def validate_config(config: ModelConfig, source: str) -> None:
    """source: the checkpoint's path, for messages.  Raises LoadError naming the field and its value."""

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
    require(
        config.head_dim % HEAD_DIM_MULTIPLE == 0 and config.head_dim <= MAX_HEAD_DIM,
        f"head_dim must be a multiple of {HEAD_DIM_MULTIPLE} up to {MAX_HEAD_DIM}, got {config.head_dim}",
    )
    require(config.rms_norm_eps >= 0, f"rms_norm_eps must not be negative, got {config.rms_norm_eps}")
    require(
        config.hidden_act in GATED_ACTIVATIONS,
        f"hidden_act must be one of {', '.join(GATED_ACTIVATIONS)}, got {config.hidden_act!r}",
    )
    _validate_windows(config, source)
    for name, rope in (("rope", config.rope), ("rope_local", config.rope_local)):
        if rope is not None:
            _validate_rope(rope, name, config.head_dim, source)


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
