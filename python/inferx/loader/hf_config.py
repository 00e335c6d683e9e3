"""ModelConfig from a Hugging Face ``config.json``.

Both spellings are read: transformers 4 (``rope_scaling``, ``rope_theta``, ``torch_dtype``) and 5
(``rope_parameters``, ``dtype``).  A key that is absent has the default of transformers' configuration
class, since ``save_pretrained`` used to leave defaults out.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from inferx.errors import LoadError
from inferx.loader.config import ModelConfig
from inferx.loader.hf_defaults import DEFAULTS, MODEL_TYPES
from inferx.loader.hf_moe_config import DEEPSEEK, FAMILIES, mla_config, moe_config
from inferx.loader.hf_rope import gemma3_ropes, rope_config
from inferx.loader.hf_values import MAX_SIZE, Values
from inferx.loader.mla import query_scalar

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
    "gelu_new": "gelu_pytorch_tanh",  # the same function
}
MAX_LAYERS = 1 << 16
# Whose attention_bias is a choice of the file, for q, k, v and o alike.
_OPTIONAL_BIAS = ("llama", "qwen3", "gemma3", "qwen3_moe", "olmoe", "deepseek_v2", "deepseek_v3", "gpt_oss")
_QK_NORM = ("qwen3", "gemma3", "qwen3_moe", "olmoe")


def architecture_of(config: dict[str, Any], path: Path) -> str:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise LoadError(
            f"{path}: model_type {kind!r} is not supported (supported: {', '.join(sorted(MODEL_TYPES))})"
        )
    _check_quantization(config, path)
    return MODEL_TYPES[kind]


def _check_quantization(config: dict[str, Any], path: Path) -> None:
    """Refuses every method that stores matrices in blocks of its own, but for the experts of gpt-oss.

    Which of its modules are quantised (``modules_to_not_convert``) shows in the tensors' names.
    """
    quantization = config.get("quantization_config")
    if not quantization:
        return
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    if method != "mxfp4" or config["model_type"] != "gpt_oss":
        raise LoadError(
            f"{path}: quantization_config: quantised safetensors are not supported (quant_method "
            f"{str(method)[:40]!r} of {config['model_type']}; only 'mxfp4' of gpt_oss is); use a GGUF file"
        )


def model_config(config: dict[str, Any], path: Path) -> ModelConfig:
    """The configuration as far as config.json goes: ``eos_token_ids`` are those it declares.

    LoadError for unknown model types and for values that make no sense.
    """
    architecture = architecture_of(config, path)
    text = config.get("text_config") if config.get("model_type") == "gemma3" else None
    data = {**config, **text} if isinstance(text, dict) else config
    if isinstance(text, dict) and "tie_word_embeddings" in config:
        data["tie_word_embeddings"] = config["tie_word_embeddings"]
    values = Values(data, DEFAULTS[architecture], path)
    if architecture == "gemma3" and values.flag("use_bidirectional_attention"):
        raise LoadError(f"{path}: use_bidirectional_attention is not supported: only causal models are")
    deepseek = architecture in DEEPSEEK
    mla = mla_config(values) if deepseek else None
    heads, hidden = values.size("num_attention_heads"), values.size("hidden_size")
    head_dim = mla.qk_head_dim if mla else _head_dim(values, heads, hidden)
    kv_heads = values.optional_size("num_key_value_heads") or heads
    if heads % kv_heads or (mla and kv_heads != heads):
        raise values.fail(
            "num_key_value_heads", f"{'' if mla else 'a divisor of '}num_attention_heads = {heads}"
        )
    window, layer_types = _attention_pattern(architecture, values)
    if architecture == "gemma3":
        rope, rope_local = gemma3_ropes(data, values.size("max_position_embeddings"), path)
    else:
        original = values.optional_size("original_max_position_embeddings")
        positions = values.size("max_position_embeddings")
        rope = rope_config(data, DEFAULTS[architecture], positions, original, architecture, path)
        if architecture in FAMILIES and rope.partial_rotary_factor != 1.0:
            # transformers' models would ignore it, or fail, by the type of scaling.
            raise LoadError(
                f"{path}: partial_rotary_factor: expected 1 for {architecture}, "
                f"got {rope.partial_rotary_factor}"
            )
        rope_local = None
    gemma = architecture == "gemma3"
    gpt_oss = architecture == "gpt_oss"
    biased = architecture in _OPTIONAL_BIAS and values.flag("attention_bias")
    scalar = values.number("query_pre_attn_scalar") if gemma else None
    return ModelConfig(
        architecture=architecture,
        vocab_size=values.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=values.size("intermediate_size"),
        num_hidden_layers=values.size("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=values.size("max_position_embeddings"),
        rms_norm_eps=values.number("rms_norm_eps"),
        hidden_act="swigluoai"
        if gpt_oss
        else _activation(values, "hidden_activation" if gemma else "hidden_act"),
        rope=rope,
        rope_local=rope_local,
        tie_word_embeddings=values.flag("tie_word_embeddings"),
        attention_bias=biased
        or architecture == "qwen2"
        or (architecture == "qwen2_moe" and values.flag("qkv_bias")),
        attention_out_bias=biased,
        mlp_bias=architecture == "llama" and values.flag("mlp_bias"),
        qk_norm=architecture in _QK_NORM,
        sliding_window=window,
        layer_types=layer_types,
        query_pre_attn_scalar=query_scalar(rope, mla) if mla else scalar,
        # Gemma 3's attn_logit_softcapping is a left-over of Gemma 2 that transformers does not apply.
        final_logit_softcapping=values.optional_number("final_logit_softcapping") if gemma else None,
        embedding_scale=math.sqrt(hidden) if gemma else None,
        norm_weight_offset=1.0 if gemma else 0.0,
        dtype=_dtype(data),
        moe=moe_config(architecture, values),
        mla=mla,
        qk_norm_all_heads=architecture == "olmoe",
        clip_qkv=values.optional_number("clip_qkv") if architecture == "olmoe" else None,
        attention_sinks=gpt_oss,
        swiglu_alpha=values.number("swiglu_alpha") if gpt_oss else 1.702,
        swiglu_limit=values.number("swiglu_limit") if gpt_oss else 7.0,
        bos_token_id=next(iter(token_ids(data.get("bos_token_id"), "bos_token_id", path)), None),
        eos_token_ids=token_ids(data.get("eos_token_id"), "eos_token_id", path),
    )


def _head_dim(values: Values, heads: int, hidden: int) -> int:
    head_dim = values.optional_size("head_dim")
    if head_dim is None and hidden % heads:
        raise values.fail(
            "hidden_size", f"a multiple of num_attention_heads = {heads} where head_dim is absent"
        )
    return head_dim or hidden // heads


def _activation(values: Values, key: str) -> str:
    name = values.get(key)
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise values.fail(key, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _dtype(data: dict[str, Any]) -> str:
    name = str(data.get("dtype") or data.get("torch_dtype") or "float32").removeprefix("torch.")
    return name if name in ("float32", "float16", "bfloat16") else "float32"


def token_ids(value: Any, key: str, path: Path) -> tuple[int, ...]:
    """A token id field, which may be null, a number or a list of numbers."""
    items = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int and 0 <= item < MAX_SIZE for item in items):
        raise LoadError(f"{path}: {key}: expected a token id or a list of them, got {str(value)[:100]}")
    return tuple(items)


def _attention_pattern(architecture: str, values: Values) -> tuple[int | None, tuple[str, ...]]:
    """(sliding_window, layer_types)."""
    layers = values.size("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise values.fail("num_hidden_layers", f"at most {MAX_LAYERS}")
    if architecture in ("llama", "olmoe", *DEEPSEEK):
        return None, ()
    if architecture in ("mistral", "phi3", "mixtral"):
        return values.optional_size("sliding_window"), ()
    windowed = not architecture.startswith("qwen") or values.flag("use_sliding_window")
    window = values.optional_size("sliding_window") if windowed else None
    if architecture == "qwen3_moe":
        return window, ()
    types = values.get("layer_types")
    if types is None:
        sliding = _sliding_layers(architecture, values, layers, windowed)
        types = ["sliding_attention" if flag else "full_attention" for flag in sliding]
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != layers or not all(kind in known for kind in types):
        raise values.fail("layer_types", f"{layers} entries, each one of {', '.join(known)}")
    if "sliding_attention" not in types:
        return None, ()
    if window is None:
        raise values.fail("sliding_window", "a number, since layer_types has sliding layers")
    return window, tuple(types)


def _sliding_layers(architecture: str, values: Values, layers: int, windowed: bool) -> list[bool]:
    """Which layers slide where layer_types does not say it."""
    if architecture == "gpt_oss":
        return [layer % 2 == 0 for layer in range(layers)]
    if architecture == "gemma3":
        period = values.size("sliding_window_pattern")
        return [(layer + 1) % period != 0 for layer in range(layers)]
    bound = values.get("max_window_layers")
    if type(bound) is not int:
        raise values.fail("max_window_layers", "an integer")
    if architecture == "qwen2_moe":
        return [windowed and layer % 2 == 0 and layer < bound for layer in range(layers)]
    return [windowed and layer >= bound for layer in range(layers)]
