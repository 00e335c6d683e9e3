"""ModelConfig from GGUF metadata and the shapes of the tensors beside it."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from inferx.errors import LoadError
from inferx.loader.config import ModelConfig, RopeConfig
from inferx.loader.gguf_file import FLOAT_DTYPES, GGUFFile

# general.architecture -> ours.  Mistral's dense models are published as "llama".
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3",
    "phi3": "phi3",
}
# Architectures whose q and k rows the converter reordered for interleaved rotary.
INTERLEAVED_ROTARY = ("llama", "mistral")
MAX_LAYERS = 1 << 16
GEMMA3_SLIDING_PATTERN = 6
GEMMA3_LOCAL_THETA = 10000.0
# The 27B model alone scales attention by hidden_size / heads; the file does not say so.
GEMMA3_27B_LAYERS = 62

# A GGUF has no generation_config.json: declared end ids are joined by control tokens of these names, which
# end a turn in every published chat format that has them.
END_OF_TURN_TOKENS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
)
_CONTROL = 3


class _Keys:
    """Typed access to ``{architecture}.{key}``; LoadError when a value is missing or of the wrong kind."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self._file = file
        self._prefix = architecture

    def _name(self, key: str) -> str:
        return f"{self._prefix}.{key}"

    def given(self, key: str) -> bool:
        """Whether the key is there and not zero, which writers use for "none"."""
        value = self._file.metadata.get(self._name(key))
        return value is not None and not (isinstance(value, (int, float)) and value == 0)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._file.metadata.get(self._name(key), default)
        if isinstance(value, array) and len(set(value)) == 1:
            value = value[0]  # one entry per layer, all equal
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
            raise LoadError(
                f"{self._file.path}: metadata {self._name(key)!r} must be a positive integer, got {value}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Positive; the bounds keep later arithmetic finite."""
        value: Any = self._file.metadata.get(self._name(key), default)
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not 1e-12 <= value <= 1e12:
            raise LoadError(
                f"{self._file.path}: metadata {self._name(key)!r} must be a positive number, got {value}"
            )
        return float(value)

    def text(self, key: str, default: str) -> str:
        value = self._file.metadata.get(self._name(key), default)
        if not isinstance(value, str):
            raise LoadError(f"{self._file.path}: metadata {self._name(key)!r} must be a string, got {value}")
        return value

    def raw(self, key: str) -> Any:
        return self._file.metadata.get(self._name(key))


def architecture_of(file: GGUFFile) -> str:
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise LoadError(
            f"{file.path}: architecture {name!r} is not supported "
            f"(supported: {', '.join(sorted(ARCHITECTURES))})"
        )
    return name


def model_config(file: GGUFFile) -> ModelConfig:
    """LoadError when the architecture is unknown or a needed key is missing or senseless."""
    name = architecture_of(file)
    keys = _Keys(file, name)
    parts = file.metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise LoadError(
            f"{file.path}: one part of a split GGUF; merge the parts first (llama-gguf-split --merge)"
        )
    if keys.given("expert_count"):
        raise LoadError(
            f"{file.path}: mixture-of-experts files of architecture {name!r} are not supported yet"
        )
    layers, heads, hidden = (
        keys.integer(key) for key in ("block_count", "attention.head_count", "embedding_length")
    )
    if layers > MAX_LAYERS:
        raise LoadError(f"{file.path}: block_count must be at most {MAX_LAYERS}, got {layers}")
    head_dim = keys.integer("attention.key_length", hidden // heads)
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise LoadError(f"{file.path}: keys and values of different lengths are not supported")
    config = ModelConfig(
        architecture=ARCHITECTURES[name],
        vocab_size=_vocab_size(file, hidden),
        hidden_size=hidden,
        intermediate_size=keys.integer("feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=keys.integer("context_length"),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon", 1e-5),
        rope=_rope(file, keys, head_dim),
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors or "blk.0.attn_qkv.bias" in file.tensors,
        attention_out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm=name in ("qwen3", "gemma3"),
        sliding_window=keys.integer("attention.sliding_window")
        if keys.given("attention.sliding_window")
        else None,
        query_pre_attn_scalar=keys.number("attention.scale") ** -2 if keys.given("attention.scale") else None,
        attn_logit_softcapping=_optional(keys, "attn_logit_softcapping"),
        final_logit_softcapping=_optional(keys, "final_logit_softcapping"),
        dtype=_unquantised_dtype(file),
        bos_token_id=_token_id(file, "bos"),
        eos_token_ids=eos_token_ids(file),
    )
    if config.num_attention_heads % config.num_key_value_heads:
        raise LoadError(
            f"{file.path}: {heads} query heads are no multiple of {config.num_key_value_heads} KV heads"
        )
    return _gemma3(config, keys, file.path) if name == "gemma3" else config


def _optional(keys: _Keys, key: str) -> float | None:
    return keys.number(key) if keys.given(key) else None


def _vocab_size(file: GGUFFile, hidden: int) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise LoadError(f"{file.path}: tensor token_embd.weight is missing")
    if len(embedding.shape) != 2 or embedding.shape[1] != hidden:
        raise LoadError(
            f"{file.path}: tensor token_embd.weight: expected shape [vocabulary, {hidden}], "
            f"got {list(embedding.shape)}"
        )
    tokens = _tokens(file)
    if len(tokens) > embedding.shape[0]:
        raise LoadError(
            f"{file.path}: tensor token_embd.weight: {embedding.shape[0]} rows for {len(tokens)} tokens"
        )
    return embedding.shape[0]


def _gemma3(config: ModelConfig, keys: _Keys, path: Path) -> ModelConfig:
    pattern = keys.raw("attention.sliding_window_pattern")
    if isinstance(pattern, array):  # one flag per layer: true = sliding
        sliding = [bool(flag) for flag in pattern]
        if len(sliding) != config.num_hidden_layers:
            raise LoadError(
                f"{path}: sliding_window_pattern has {len(sliding)} entries "
                f"for {config.num_hidden_layers} layers"
            )
    else:
        period = pattern if isinstance(pattern, int) and pattern > 0 else GEMMA3_SLIDING_PATTERN
        sliding = [(layer + 1) % period != 0 for layer in range(config.num_hidden_layers)]
    scalar = config.query_pre_attn_scalar
    if scalar is None and config.num_hidden_layers == GEMMA3_27B_LAYERS:
        scalar = config.hidden_size / config.num_attention_heads
    return replace(
        config,
        hidden_act="gelu_pytorch_tanh",
        layer_types=tuple("sliding_attention" if flag else "full_attention" for flag in sliding),
        rope_local=RopeConfig(theta=keys.number("rope.freq_base_swa", GEMMA3_LOCAL_THETA)),
        query_pre_attn_scalar=scalar,
        embedding_scale=math.sqrt(config.hidden_size),
    )


def _rope(file: GGUFFile, keys: _Keys, head_dim: int) -> RopeConfig:
    theta = keys.number("rope.freq_base", 10000.0)
    rotary_dim = keys.integer("rope.dimension_count", head_dim)
    if rotary_dim > head_dim or rotary_dim % 2:
        raise LoadError(
            f"{file.path}: rope.dimension_count must be even and at most {head_dim}, got {rotary_dim}"
        )
    # Half an element of slack: int(head_dim * fraction) must give rotary_dim back.
    fraction = 1.0 if rotary_dim == head_dim else (rotary_dim + 0.5) / head_dim
    original = (
        keys.integer("rope.scaling.original_context_length")
        if keys.given("rope.scaling.original_context_length")
        else None
    )
    rope = RopeConfig(
        theta=theta,
        partial_rotary_factor=fraction,
        original_max_position_embeddings=original,
        freq_factors=_factors(file, "rope_freqs.weight", rotary_dim),
    )
    long_factor = _factors(file, "rope_factors_long.weight", rotary_dim)
    short_factor = _factors(file, "rope_factors_short.weight", rotary_dim)
    if long_factor and short_factor:
        attention = _optional(keys, "rope.scaling.attn_factor")
        return replace(
            rope,
            rope_type="longrope",
            factor=keys.integer("context_length") / (original or keys.integer("context_length")),
            original_max_position_embeddings=original or keys.integer("context_length"),
            long_factor=long_factor,
            short_factor=short_factor,
            attention_factor=attention,
        )
    return _scaled(file, keys, rope)


def _scaled(file: GGUFFile, keys: _Keys, rope: RopeConfig) -> RopeConfig:
    kind = keys.text("rope.scaling.type", "none")
    factor = _optional(keys, "rope.scaling.factor") or _optional(keys, "rope.scale_linear") or 1.0
    if kind == "none" and keys.given("rope.scale_linear"):
        kind = "linear"
    if kind in ("none", "longrope") or factor == 1.0:
        return rope
    if kind == "linear":
        return replace(rope, rope_type="linear", factor=factor)
    if kind != "yarn":
        raise LoadError(
            f"{file.path}: rope scaling {kind!r} is not supported (supported: none, linear, yarn, longrope)"
        )
    context = keys.integer("context_length")
    scale = keys.number("rope.scaling.attn_factor", keys.number("rope.scaling.yarn_attn_factor", 1.0))
    return replace(
        rope,
        rope_type="yarn",
        factor=factor,
        original_max_position_embeddings=rope.original_max_position_embeddings or context,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        # The file's factor multiplies the usual one.
        attention_factor=None if scale == 1.0 else scale * (0.1 * math.log(factor) + 1.0),
    )


def _factors(file: GGUFFile, name: str, rotary_dim: int) -> tuple[float, ...]:
    info = file.tensors.get(name)
    if info is None:
        return ()
    if info.shape != (rotary_dim // 2,) or info.dtype not in FLOAT_DTYPES:
        raise LoadError(
            f"{file.path}: tensor {name}: expected {rotary_dim // 2} floats, "
            f"got {info.dtype} {list(info.shape)}"
        )
    values = tuple(float(value) for value in file.read(name).float())
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise LoadError(f"{file.path}: tensor {name}: factors must be positive and finite")
    return values


def _unquantised_dtype(file: GGUFFile) -> str:
    """The dtype of most unquantised matrices; norms are F32 in every file and say nothing."""
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    counts = Counter(t.dtype for t in file.tensors.values() if len(t.shape) > 1 and t.dtype in names)
    return names[counts.most_common(1)[0][0]] if counts else "float32"


def _token_id(file: GGUFFile, name: str) -> int | None:
    value = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    # Some writers say "none" with an all-ones id.
    return value if isinstance(value, int) and 0 <= value < len(_tokens(file)) else None


def _tokens(file: GGUFFile) -> list[str]:
    value = file.metadata.get("tokenizer.ggml.tokens")
    return value if isinstance(value, list) else []


def eos_token_ids(file: GGUFFile) -> tuple[int, ...]:
    """Declared end ids first (eos, eot, eom), then control tokens known to end a turn."""
    ids = [token for name in ("eos", "eot", "eom") if (token := _token_id(file, name)) is not None]
    tokens, types = _tokens(file), file.metadata.get("tokenizer.ggml.token_type")
    if isinstance(types, array) and len(types) == len(tokens):
        controls = {token: i for i, token in enumerate(tokens) if types[i] == _CONTROL}
        ids += [controls[text] for text in END_OF_TURN_TOKENS if text in controls]
    return tuple(dict.fromkeys(ids))
