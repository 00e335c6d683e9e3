"""config.json against transformers' own configuration classes: absent keys, both spellings, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from inferx.errors import LoadError
from inferx.loader.config import ModelConfig
from inferx.loader.hf_config import model_config

PATH = Path("config.json")
CLASSES = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gemma3_text": transformers.Gemma3TextConfig,
    "phi3": transformers.Phi3Config,
}
LONG = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in CLASSES),
    ("llama", {"head_dim": 32, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
    ("llama", {"head_dim": None, "num_key_value_heads": None, "tie_word_embeddings": True}),
    ("llama", {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
    ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_theta": 1e6}),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
    (
        "llama",
        {
            "max_position_embeddings": 1024,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 256,
                "beta_fast": 16,
                "beta_slow": 2,
                "truncate": False,
                "mscale": 0.7,
                "mscale_all_dim": 0.9,
                "attention_factor": 1.3,
            },
        },
    ),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.5}}),
    ("llama", {"partial_rotary_factor": 0.25}),
    ("mistral", {"sliding_window": None}),
    ("mistral", {"sliding_window": 100, "head_dim": 64}),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 3, "num_hidden_layers": 5}),
    (
        "qwen2",
        {
            "use_sliding_window": True,
            "num_hidden_layers": 2,
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    ("qwen2", {"head_dim": 64}),
    ("qwen3", {"attention_bias": True}),
    ("qwen3", {"use_sliding_window": True, "max_window_layers": 0, "num_hidden_layers": 3}),
    ("gemma3_text", {"num_hidden_layers": 7, "sliding_window_pattern": 3, "sliding_window": 512}),
    (
        "gemma3_text",
        {
            "rope_theta": 5e5,
            "rope_local_base_freq": 2e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
    ),
    (
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
            }
        },
    ),
    (
        "gemma3_text",
        {"query_pre_attn_scalar": 168, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    ),
    ("phi3", {"rope_scaling": {"type": "longrope", **LONG}, "max_position_embeddings": 131072}),
    (
        "phi3",
        {"rope_scaling": {"type": "su", **LONG}, "max_position_embeddings": 131072, "sliding_window": 262144},
    ),
    (
        "phi3",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
                **LONG,
                "short_factor": [1.0] * 36,
                "long_factor": [2.0] * 36,
            },
            "max_position_embeddings": 131072,
        },
    ),
]


def ropes_of(oracle: Any) -> list[dict[str, Any]]:
    parameters = oracle.rope_parameters
    nested = [parameters[key] for key in ("full_attention", "sliding_attention") if key in parameters]
    return nested or [parameters]


@pytest.mark.parametrize(("kind", "keys"), VARIANTS)
def test_every_value_is_transformers(kind: str, keys: dict[str, Any]) -> None:
    config = model_config({"model_type": kind, **keys}, PATH)
    oracle = CLASSES[kind](**keys)
    check_sizes(config, oracle)
    check_attention(config, oracle)
    for rope, expected in zip([config.rope, config.rope_local], ropes_of(oracle), strict=False):
        assert rope is not None
        assert rope.rope_type == expected["rope_type"]
        assert rope.theta == expected["rope_theta"]
        for name in ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate"):
            if name in expected:
                assert getattr(rope, name) == expected[name]
        assert rope.partial_rotary_factor == expected.get("partial_rotary_factor", 1.0)
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            assert getattr(rope, name) == expected.get(name)
        if expected["rope_type"] in ("yarn", "llama3", "longrope"):
            assert rope.original_max_position_embeddings == expected["original_max_position_embeddings"]
        for name in ("short_factor", "long_factor"):
            assert list(getattr(rope, name)) == expected.get(name, [])


def check_sizes(config: ModelConfig, oracle: Any) -> None:
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
    ):
        assert getattr(config, name) == getattr(oracle, name), name
    head_dim = getattr(oracle, "head_dim", None) or oracle.hidden_size // oracle.num_attention_heads
    assert config.head_dim == head_dim
    activation = getattr(oracle, "hidden_activation", None) or oracle.hidden_act
    assert config.hidden_act == activation


def check_attention(config: ModelConfig, oracle: Any) -> None:
    kind = oracle.model_type
    assert config.attention_bias == (kind == "qwen2" or bool(getattr(oracle, "attention_bias", False)))
    assert config.attention_out_bias == bool(getattr(oracle, "attention_bias", False))
    assert config.mlp_bias == bool(getattr(oracle, "mlp_bias", False))
    for layer in range(config.num_hidden_layers):
        types = getattr(oracle, "layer_types", None)
        window = getattr(oracle, "sliding_window", None)
        sliding = types is None or types[layer] == "sliding_attention"
        assert config.window_of(layer) == (window if sliding else None)
    gemma = kind == "gemma3_text"
    assert config.query_pre_attn_scalar == (oracle.query_pre_attn_scalar if gemma else None)
    assert config.final_logit_softcapping == getattr(oracle, "final_logit_softcapping", None)
    # Gemma 3's is a left-over of Gemma 2: transformers keeps it in the configuration and applies nothing.
    assert config.attn_logit_softcapping is None
    assert config.embedding_scale == (oracle.hidden_size**0.5 if gemma else None)
    assert config.norm_weight_offset == (1.0 if gemma else 0.0)
    assert config.qk_norm == (kind in ("qwen3", "gemma3_text"))


@pytest.mark.parametrize("kind", list(CLASSES))
def test_what_transformers_saves_is_read_back(kind: str) -> None:
    """to_dict() is the transformers 5 spelling with every key."""
    saved = CLASSES[kind](num_hidden_layers=4).to_dict()
    config = model_config(saved, PATH)
    check_sizes(config, CLASSES[kind](num_hidden_layers=4))
    check_attention(config, CLASSES[kind](num_hidden_layers=4))


def test_context_limits_are_never_multiplied() -> None:
    """Case D06: with YaRN, max_position_embeddings includes the factor already; where it does not (it equals
    the original length), the limit is still what the file says."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    for limit in (1024, 256):
        config = model_config(
            {"model_type": "llama", "max_position_embeddings": limit, "rope_scaling": yarn}, PATH
        )
        assert config.max_position_embeddings == limit
        assert config.rope.original_max_position_embeddings == 256


def test_head_dim() -> None:
    """Case D14."""
    base = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    assert model_config({**base, "head_dim": 32}, PATH).head_dim == 32
    assert model_config({**base, "head_dim": None}, PATH).head_dim == 16
    assert model_config(base, PATH).head_dim == 16
    odd = {"model_type": "llama", "hidden_size": 72, "num_attention_heads": 5}
    assert model_config({**odd, "head_dim": 16}, PATH).head_dim == 16
    with pytest.raises(LoadError, match="hidden_size: expected a multiple of num_attention_heads = 5"):
        model_config(odd, PATH)


def test_dtypes() -> None:
    for keys in ({"dtype": "bfloat16"}, {"torch_dtype": "bfloat16"}, {"torch_dtype": "torch.bfloat16"}):
        assert model_config({"model_type": "llama", **keys}, PATH).dtype == "bfloat16"
    assert model_config({"model_type": "llama"}, PATH).dtype == "float32"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"model_type": "gpt_neox"},
            "'gpt_neox' is not supported .supported: .*gemma3, gemma3_text, .*llama",
        ),
        ({"model_type": None}, "model_type None is not supported"),
        ({"model_type": ["llama"]}, "is not supported"),
        ({"hidden_size": "64"}, "hidden_size: expected a positive integer, got 64"),
        ({"hidden_size": 0}, "hidden_size: expected a positive integer, got 0"),
        ({"num_hidden_layers": 1 << 30}, "num_hidden_layers: expected at most"),
        ({"num_attention_heads": 4, "num_key_value_heads": 3}, "a divisor of num_attention_heads = 4, got 3"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: expected a positive number"),
        ({"hidden_act": "relu2"}, "hidden_act: expected one of silu"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: expected true or false"),
        ({"rope_scaling": [1]}, "rope_scaling: expected an object or null"),
        ({"rope_scaling": {"type": "spiral"}}, "rope_type 'spiral' is not supported"),
        (
            {"rope_scaling": {"type": "linear"}},
            "factor of rope type linear: expected a positive number in float32.s range, got None",
        ),
        ({"rope_scaling": {"type": "longrope", "long_factor": ["x"]}}, "short_factor of rope type longrope"),
        ({"rope_theta": -1}, "rope_theta of rope type default: expected a positive number"),
        ({"model_type": "qwen2", "use_sliding_window": True, "layer_types": ["chunked"]}, "layer_types"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_type": "gemma3_text", "sliding_window": None}, "sliding_window: expected a number"),
    ],
)
def test_refusals_name_the_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        model_config({"model_type": "llama", **keys}, PATH)
