"""ModelConfig from GGUF metadata and the shapes of the tensors beside it."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path

from inferx.errors import LoadError
from inferx.loader.config import ModelConfig, MoEConfig, RopeConfig
from inferx.loader.gguf_file import FLOAT_DTYPES, GGUFFile
from inferx.loader.gguf_keys import Keys
from inferx.loader.gguf_moe_config import WITH_EXPERTS, latent_attention, moe_config
from inferx.loader.mla import query_scalar

# general.architecture -> ours.  Mistral's models are published as "llama", both DeepSeek-V2 and V3 as
# "deepseek2": see _canonical_architecture.
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3",
    "phi3": "phi3",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "olmoe": "olmoe",
    "deepseek2": "deepseek_v2",
    "gpt-oss": "gpt_oss",
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
    keys = Keys(file, name)
    parts = file.metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise LoadError(
            f"{file.path}: one part of a split GGUF; merge the parts first (llama-gguf-split --merge)"
        )
    if keys.given("expert_count") and name not in WITH_EXPERTS:
        raise LoadError(
            f"{file.path}: mixture-of-experts files of architecture {name!r} are not supported yet"
        )
    layers, heads, hidden = (
        keys.integer(key) for key in ("block_count", "attention.head_count", "embedding_length")
    )
    if layers > MAX_LAYERS:
        raise LoadError(f"{file.path}: block_count must be at most {MAX_LAYERS}, got {layers}")
    if extra_blocks(file, name) >= layers:
        raise keys.fail("nextn_predict_layers", f"below block_count = {layers}")
    layers -= extra_blocks(file, name)
    mla = latent_attention(file, keys) if name == "deepseek2" else None
    moe = moe_config(file, keys, name, layers)
    head_dim = mla.qk_head_dim if mla else keys.integer("attention.key_length", hidden // heads)
    if mla is None and keys.integer("attention.value_length", head_dim) != head_dim:
        raise LoadError(f"{file.path}: keys and values of different lengths are not supported")
    rope = _rope(file, keys, mla.qk_rope_head_dim if mla else head_dim)
    scale = keys.optional_number("attention.scale")
    config = ModelConfig(
        architecture=_canonical_architecture(name, moe),
        vocab_size=_vocab_size(file, hidden),
        hidden_size=hidden,
        intermediate_size=keys.integer("feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        # Newer files call latent attention attention with one key-value head.
        num_key_value_heads=heads if mla else keys.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        max_position_embeddings=keys.integer("context_length"),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon", 1e-5),
        rope=rope,
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors or "blk.0.attn_qkv.bias" in file.tensors,
        attention_out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm=name in ("qwen3", "gemma3", "qwen3moe", "olmoe"),
        sliding_window=keys.optional_integer("attention.sliding_window"),
        query_pre_attn_scalar=query_scalar(rope, mla) if mla else scale and scale**-2,
        attn_logit_softcapping=keys.optional_number("attn_logit_softcapping"),
        final_logit_softcapping=keys.optional_number("final_logit_softcapping"),
        dtype=_unquantised_dtype(file),
        moe=moe,
        mla=mla,
        qk_norm_all_heads=name == "olmoe",
        clip_qkv=keys.optional_number("attention.clamp_kqv") if name == "olmoe" else None,
        bos_token_id=_token_id(file, "bos"),
        eos_token_ids=eos_token_ids(file),
    )
    if config.num_attention_heads % config.num_key_value_heads:
        raise LoadError(
            f"{file.path}: {heads} query heads are no multiple of {config.num_key_value_heads} KV heads"
        )
    if name == "gpt-oss":
        return _gpt_oss(config, keys)
    return _gemma3(config, keys, file.path) if name == "gemma3" else config


def extra_blocks(file: GGUFFile, architecture: str) -> int:
    """The last blocks of a file that predict further tokens: counted with the others, and not run."""
    keys = Keys(file, architecture)
    count = keys.optional_integer("nextn_predict_layers") or 0
    if count and architecture != "deepseek2":
        raise keys.fail("nextn_predict_layers", f"0 for {architecture}, which has no such blocks")
    return count


def _canonical_architecture(name: str, moe: MoEConfig | None) -> str:
    if name in INTERLEAVED_ROTARY and moe is not None:
        return "mixtral"
    if name == "deepseek2" and moe is not None and moe.scoring == "sigmoid":
        return "deepseek_v3"
    return ARCHITECTURES[name]


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


def _gemma3(config: ModelConfig, keys: Keys, path: Path) -> ModelConfig:
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


def _gpt_oss(config: ModelConfig, keys: Keys) -> ModelConfig:
    """What the converter leaves to the reader."""
    window = keys.integer("attention.sliding_window")
    kinds = ("sliding_attention", "full_attention")
    return replace(
        config,
        hidden_act="swigluoai",
        rope=replace(config.rope, truncate=False),
        sliding_window=window,
        layer_types=tuple(kinds[layer % 2] for layer in range(config.num_hidden_layers)),
        attention_sinks=True,
    )


def _rope(file: GGUFFile, keys: Keys, head_dim: int) -> RopeConfig:
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
        attention = keys.optional_number("rope.scaling.attn_factor")
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


def _scaled(file: GGUFFile, keys: Keys, rope: RopeConfig) -> RopeConfig:
    kind = keys.text("rope.scaling.type", "none")
    factor = keys.optional_number("rope.scaling.factor") or keys.optional_number("rope.scale_linear") or 1.0
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
    # DeepSeek's, whose mscale and mscale_all_dim are one number.
    log_multiplier = keys.optional_number("rope.scaling.yarn_log_multiplier")
    mscale = log_multiplier / 0.1 if log_multiplier else None
    return replace(
        rope,
        rope_type="yarn",
        factor=factor,
        original_max_position_embeddings=rope.original_max_position_embeddings or context,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        # The file's factor multiplies the usual one.
        mscale=mscale,
        mscale_all_dim=mscale,
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
