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
from inferx.loader.hf_rope import gemma3_ropes, rope_config

_COMMON: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "num_key_value_heads": None,
    "head_dim": None,
    "sliding_window": None,
    "attention_bias": False,
    "mlp_bias": False,
}
_QWEN: dict[str, Any] = _COMMON | {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_LLAMA: dict[str, Any] = _COMMON | {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# Architecture -> defaults of absent keys.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "mistral": _LLAMA
    | {
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": _QWEN,
    "qwen3": _QWEN | {"head_dim": 128},
    "gemma3": _COMMON
    | {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "bos_token_id": 2,
        "eos_token_id": 1,
    },
    "phi3": _COMMON
    | {
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 32000,
    },
}
MODEL_TYPES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    "gemma3": "gemma3",
    "phi3": "phi3",
}
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
    "gelu_new": "gelu_pytorch_tanh",  # the same function
}
_MAX_SIZE = 1 << 31
MAX_LAYERS = 1 << 16


class Values:
    """Checked access to the keys of a config.json with an architecture's defaults."""

    def __init__(self, data: dict[str, Any], defaults: dict[str, Any], path: Path) -> None:
        self._data, self._defaults, self.path = data, defaults, path

    def get(self, key: str) -> Any:
        """Absent: the default.  An explicit null stays None."""
        return self._data[key] if key in self._data else self._defaults.get(key)

    def fail(self, key: str, expected: str) -> LoadError:
        return LoadError(f"{self.path}: {key}: expected {expected}, got {str(self.get(key))[:100]}")

    def size(self, key: str) -> int:
        value = self.get(key)
        if type(value) is not int or not 0 < value < _MAX_SIZE:
            raise self.fail(key, "a positive integer")
        return value

    def optional_size(self, key: str) -> int | None:
        return None if self.get(key) is None else self.size(key)

    def number(self, key: str) -> float:
        value = self.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.fail(key, "a positive number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return bool(value)


def architecture_of(config: dict[str, Any], path: Path) -> str:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise LoadError(
            f"{path}: model_type {kind!r} is not supported (supported: {', '.join(sorted(MODEL_TYPES))})"
        )
    if config.get("quantization_config"):
        raise LoadError(
            f"{path}: quantization_config: quantised safetensors are not supported; use a GGUF file"
        )
    return MODEL_TYPES[kind]


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
    heads, hidden = values.size("num_attention_heads"), values.size("hidden_size")
    head_dim = values.optional_size("head_dim")
    if head_dim is None:
        if hidden % heads:
            raise values.fail(
                "hidden_size", f"a multiple of num_attention_heads = {heads} where head_dim is absent"
            )
        head_dim = hidden // heads
    kv_heads = values.optional_size("num_key_value_heads") or heads
    if heads % kv_heads:
        raise values.fail("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    window, layer_types = _attention_pattern(architecture, values)
    if architecture == "gemma3":
        rope, rope_local = gemma3_ropes(data, values.size("max_position_embeddings"), path)
    else:
        original = values.optional_size("original_max_position_embeddings")
        rope = rope_config(data, values.size("max_position_embeddings"), original, architecture, path)
        rope_local = None
    gemma = architecture == "gemma3"
    biased = architecture in ("llama", "qwen3", "gemma3") and values.flag("attention_bias")
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
        hidden_act=_activation(values, "hidden_activation" if gemma else "hidden_act"),
        rope=rope,
        rope_local=rope_local,
        tie_word_embeddings=values.flag("tie_word_embeddings"),
        attention_bias=biased or architecture == "qwen2",
        attention_out_bias=biased,
        mlp_bias=architecture == "llama" and values.flag("mlp_bias"),
        qk_norm=architecture in ("qwen3", "gemma3"),
        sliding_window=window,
        layer_types=layer_types,
        query_pre_attn_scalar=values.number("query_pre_attn_scalar") if gemma else None,
        # Gemma 3's attn_logit_softcapping is a left-over of Gemma 2 that transformers does not apply.
        final_logit_softcapping=values.optional_number("final_logit_softcapping") if gemma else None,
        embedding_scale=math.sqrt(hidden) if gemma else None,
        norm_weight_offset=1.0 if gemma else 0.0,
        dtype=_dtype(data),
        bos_token_id=next(iter(token_ids(data.get("bos_token_id"), "bos_token_id", path)), None),
        eos_token_ids=token_ids(data.get("eos_token_id"), "eos_token_id", path),
    )


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
    if not all(type(item) is int and 0 <= item < _MAX_SIZE for item in items):
        raise LoadError(f"{path}: {key}: expected a token id or a list of them, got {str(value)[:100]}")
    return tuple(items)


def _attention_pattern(architecture: str, values: Values) -> tuple[int | None, tuple[str, ...]]:
    """(sliding_window, layer_types)."""
    layers = values.size("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise values.fail("num_hidden_layers", f"at most {MAX_LAYERS}")
    if architecture == "llama":
        return None, ()
    if architecture in ("mistral", "phi3"):
        return values.optional_size("sliding_window"), ()
    window = values.optional_size("sliding_window")
    if architecture in ("qwen2", "qwen3") and not values.flag("use_sliding_window"):
        window = None
    types = values.get("layer_types")
    if types is None:
        if architecture == "gemma3":
            period = values.size("sliding_window_pattern")
            sliding = [(layer + 1) % period != 0 for layer in range(layers)]
        else:
            first = values.get("max_window_layers")
            if type(first) is not int:
                raise values.fail("max_window_layers", "an integer")
            sliding = [window is not None and layer >= first for layer in range(layers)]
        types = ["sliding_attention" if flag else "full_attention" for flag in sliding]
    known = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != layers or not all(kind in known for kind in types):
        raise values.fail("layer_types", f"{layers} entries, each one of {', '.join(known)}")
    if "sliding_attention" not in types:
        return None, ()
    if window is None:
        raise values.fail("sliding_window", "a number, since layer_types has sliding layers")
    return window, tuple(types)
