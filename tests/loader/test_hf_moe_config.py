"""Experts and latent attention of config.json against transformers' own configuration classes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import transformers

from inferx.errors import LoadError
from inferx.loader.hf_config import model_config

PATH = Path("config.json")
CLASSES: dict[str, Any] = {
    "mixtral": transformers.MixtralConfig,
    "qwen2_moe": transformers.Qwen2MoeConfig,
    "qwen3_moe": transformers.Qwen3MoeConfig,
    "olmoe": transformers.OlmoeConfig,
    "deepseek_v2": transformers.DeepseekV2Config,
    "deepseek_v3": transformers.DeepseekV3Config,
    "gpt_oss": transformers.GptOssConfig,
}
YARN = {"factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
GROUPS = {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((kind, {"num_experts_per_tok": 6} if kind == "deepseek_v2" else {}) for kind in CLASSES),
    ("mixtral", {"sliding_window": 4096, "head_dim": 96, "rope_theta": 5e5}),
    ("mixtral", {"num_local_experts": 16, "num_experts_per_tok": 4}),
    ("qwen2_moe", {"use_sliding_window": True, "max_window_layers": 5, "num_hidden_layers": 8}),
    ("qwen2_moe", {"qkv_bias": False, "norm_topk_prob": True, "mlp_only_layers": [0, 5, 99]}),
    ("qwen2_moe", {"decoder_sparse_step": 3, "num_hidden_layers": 7}),
    ("qwen2_moe", {"num_experts": 0}),
    ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 64}),
    ("qwen3_moe", {"attention_bias": True, "head_dim": 128, "decoder_sparse_step": 2}),
    ("olmoe", {"clip_qkv": 8.0, "norm_topk_prob": True, "attention_bias": True}),
    ("deepseek_v2", {"num_experts_per_tok": 6, "q_lora_rank": None, "n_group": 1, "topk_group": 1}),
    ("deepseek_v2", {"num_experts_per_tok": 6, "routed_scaling_factor": 16.0, **GROUPS}),
    ("deepseek_v2", {"num_experts_per_tok": 6, "first_k_dense_replace": 99}),
    (
        "deepseek_v2",
        {
            "num_experts_per_tok": 6,
            "rope_scaling": {"type": "yarn", "mscale": 0.707, "mscale_all_dim": 0.707, **YARN},
        },
    ),
    ("deepseek_v3", {"rope_scaling": {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0, **YARN}}),
    ("deepseek_v3", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 2e4, **YARN}}),
    ("deepseek_v3", {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "norm_topk_prob": False}),
    ("gpt_oss", {"num_hidden_layers": 3, "swiglu_limit": 5.0, "swiglu_alpha": 1.5, "num_local_experts": 32}),
    ("gpt_oss", {"rope_theta": 1e5, "rope_scaling": {"rope_type": "yarn", **YARN, "truncate": False}}),
    (
        "gpt_oss",
        {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 9},
    ),
]


def first_given(oracle: Any, *names: str) -> Any:
    return next(getattr(oracle, name) for name in names if hasattr(oracle, name))


def sparse(oracle: Any, layer: int) -> bool:
    """What the decoder layers' constructors decide."""
    if hasattr(oracle, "decoder_sparse_step"):
        steps = oracle.num_experts > 0 and (layer + 1) % oracle.decoder_sparse_step == 0
        return layer not in oracle.mlp_only_layers and steps
    return layer >= getattr(oracle, "first_k_dense_replace", 0)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(("kind", "keys"), VARIANTS)
def test_every_value_is_transformers(kind: str, keys: dict[str, Any], saved: bool) -> None:
    """saved: as transformers 5 writes it, with every key."""
    oracle = CLASSES[kind](**keys)
    config = model_config(oracle.to_dict() if saved else {"model_type": kind, **keys}, PATH)
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
    check_attention(config, oracle)
    check_experts(config, oracle)
    check_rope(config, oracle)


def check_attention(config: Any, oracle: Any) -> None:
    kind = oracle.model_type
    latent = kind.startswith("deepseek")
    if latent:
        assert config.head_dim == oracle.qk_head_dim == config.mla.qk_head_dim
        for name in ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            assert getattr(config.mla, name) == getattr(oracle, name), name
    else:
        assert config.mla is None
        head_dim = getattr(oracle, "head_dim", None) or oracle.hidden_size // oracle.num_attention_heads
        assert config.head_dim == head_dim
    assert config.attention_bias == getattr(oracle, "qkv_bias", getattr(oracle, "attention_bias", False))
    assert config.attention_out_bias == getattr(oracle, "attention_bias", False)
    assert not config.mlp_bias
    assert config.qk_norm == (kind in ("qwen3_moe", "olmoe"))
    assert config.qk_norm_all_heads == (kind == "olmoe")
    assert config.clip_qkv == getattr(oracle, "clip_qkv", None)
    assert config.attention_sinks == (kind == "gpt_oss")
    types = getattr(oracle, "layer_types", None)
    for layer in range(config.num_hidden_layers):
        slides = types is None or types[layer] == "sliding_attention"
        assert config.window_of(layer) == (getattr(oracle, "sliding_window", None) if slides else None)


def check_experts(config: Any, oracle: Any) -> None:
    kind, moe = oracle.model_type, config.moe
    layers = tuple(sparse(oracle, layer) for layer in range(oracle.num_hidden_layers))
    if not any(layers):
        assert moe is None
        return
    deepseek = kind.startswith("deepseek")
    assert moe.layers == layers
    assert moe.num_experts == first_given(oracle, "n_routed_experts", "num_local_experts", "num_experts")
    assert moe.top_k == oracle.num_experts_per_tok
    assert moe.intermediate_size == first_given(oracle, "moe_intermediate_size", "intermediate_size")
    assert moe.scoring == ("sigmoid" if kind == "deepseek_v3" else "softmax")
    assert moe.score_bias == (kind == "deepseek_v3")
    always, never = kind in ("mixtral", "gpt_oss"), kind == "deepseek_v2"
    assert moe.renormalize == (always or (not never and oracle.norm_topk_prob))
    assert moe.routed_scaling_factor == getattr(oracle, "routed_scaling_factor", 1.0)
    grouped = deepseek and getattr(oracle, "topk_method", "") != "greedy"
    assert (moe.num_groups, moe.top_groups) == ((oracle.n_group, oracle.topk_group) if grouped else (1, 1))
    assert moe.router_bias == moe.expert_bias == (kind == "gpt_oss")
    assert moe.shared_gate == (kind == "qwen2_moe")
    shared = oracle.n_shared_experts * oracle.moe_intermediate_size if deepseek else 0
    assert moe.shared_intermediate_size == getattr(oracle, "shared_expert_intermediate_size", shared)
    assert config.hidden_act == ("swigluoai" if kind == "gpt_oss" else oracle.hidden_act)
    if kind == "gpt_oss":
        assert (config.swiglu_alpha, config.swiglu_limit) == (oracle.swiglu_alpha, oracle.swiglu_limit)


def check_rope(config: Any, oracle: Any) -> None:
    expected = oracle.rope_parameters
    assert (config.rope.rope_type, config.rope.theta) == (expected["rope_type"], expected["rope_theta"])
    assert config.rope.partial_rotary_factor == 1.0
    for name in ("factor", "beta_fast", "beta_slow", "truncate", "original_max_position_embeddings"):
        if name in expected:
            assert getattr(config.rope, name) == expected[name], name
    for name in ("mscale", "mscale_all_dim"):
        assert getattr(config.rope, name) == expected.get(name)


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
def test_the_scale_of_the_scores_is_the_attention_modules(kind: str) -> None:
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

    module = {"deepseek_v2": DeepseekV2Attention, "deepseek_v3": DeepseekV3Attention}[kind]
    small = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 8}
    small |= {"num_experts_per_tok": 2, "num_hidden_layers": 2}
    for scaling in (
        None,
        {"type": "yarn", **YARN},
        {"type": "yarn", "mscale": 0.7, "mscale_all_dim": 0.9, **YARN},
        {"type": "yarn", "mscale_all_dim": 1.0, **YARN, "factor": 1.0},
        {"type": "linear", "mscale_all_dim": 1.0, "factor": 2.0},
    ):
        keys: dict[str, Any] = {**small, "rope_scaling": scaling}
        config = model_config({"model_type": kind, **keys}, PATH)
        scalar = config.query_pre_attn_scalar or config.head_dim
        oracle = CLASSES[kind](**{**keys, "rope_scaling": dict(scaling) if scaling else None})
        assert math.isclose(scalar**-0.5, module(oracle, 0).scaling, rel_tol=1e-12)


def test_a_long_list_of_layers_takes_no_time() -> None:
    """Layers times entries are 10 ** 10."""
    keys = {"num_hidden_layers": 1 << 16, "mlp_only_layers": [*range(1, 1 << 16), *[1 << 20] * 100_000]}
    moe = model_config({"model_type": "qwen3_moe", **keys}, PATH).moe
    assert moe is not None
    assert moe.layers == (True, *[False] * ((1 << 16) - 1))


def test_every_spelling_of_the_number_of_experts() -> None:
    for kind in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3", "gpt_oss"):
        for key in ("num_experts", "num_local_experts", "n_routed_experts"):
            moe = model_config({"model_type": kind, key: 64}, PATH).moe
            assert moe is not None
            assert moe.num_experts == 64
    moe = model_config({"model_type": "gpt_oss", "experts_per_token": 3}, PATH).moe
    assert moe is not None
    assert moe.top_k == 3


def test_the_largest_number_of_float32() -> None:
    """Printed with few digits it is above itself, and still rounds to it."""
    assert model_config({"model_type": "olmoe", "clip_qkv": 3.4028235e38}, PATH).clip_qkv == 3.4028235e38
    with pytest.raises(LoadError, match=r"clip_qkv: .* float32's range, got 3\.4028236e\+38"):
        model_config({"model_type": "olmoe", "clip_qkv": 3.4028236e38}, PATH)


def test_layers_of_deepseek() -> None:
    def layers(**keys: Any) -> tuple[bool, ...]:
        moe = model_config({"model_type": "deepseek_v3", "num_hidden_layers": 5, **keys}, PATH).moe
        assert moe is not None
        return moe.layers

    assert layers() == (False, False, False, True, True)
    assert layers(first_k_dense_replace=1, moe_layer_freq=2) == (False, False, True, False, True)
    kinds = ["dense", "sparse", "dense", "sparse", "dense"]
    assert layers(mlp_layer_types=kinds) == tuple(kind == "sparse" for kind in kinds)


DEEPSEEK = {"model_type": "deepseek_v3", "num_hidden_layers": 4}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok: expected at most num_local_experts = 8, got 9"),
        ({"num_local_experts": 0}, "num_local_experts: expected a positive integer, got 0"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok: expected a positive integer"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 0}, "decoder_sparse_step: expected a positive"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": ["0"]}, "mlp_only_layers: expected a list of layer"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": 3}, "mlp_only_layers: expected a list of layer"),
        ({"model_type": "qwen3_moe", "norm_topk_prob": 1}, "norm_topk_prob: expected true or false"),
        (
            {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 0},
            "shared_expert_intermediate_size",
        ),
        ({"model_type": "qwen2_moe", "moe_intermediate_size": -1}, "moe_intermediate_size: expected a pos"),
        ({"model_type": "olmoe", "clip_qkv": -1}, "clip_qkv: expected a positive number"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps: expected a positive number in float32.s range, got 1000"),
        (
            {"rope_theta": 10**400},
            "rope_theta of rope type default: expected a positive number in float32.s range, got 1000",
        ),
        (
            {"model_type": "gpt_oss", "rope_parameters": {"rope_type": "yarn", **YARN, "truncate": "no"}},
            "truncate of rope type yarn: expected true or false, got no",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor: expected 1 for mixtral, got 0.5"),
        ({"model_type": "gpt_oss", "layer_types": ["full_attention"]}, "layer_types: expected 4 entries"),
        ({"model_type": "gpt_oss", "swiglu_limit": 0}, "swiglu_limit: expected a positive number"),
        ({**DEEPSEEK, "n_group": 7}, "n_group: expected a divisor of the 256 experts, got 7"),
        ({**DEEPSEEK, "n_group": 256}, "n_group: expected at least two of the 256 experts in each group"),
        ({**DEEPSEEK, "topk_group": 9}, "topk_group: expected at most n_group = 8, got 9"),
        ({**DEEPSEEK, "topk_group": None}, "topk_group: expected a positive integer, got None"),
        (
            {**DEEPSEEK, "n_routed_experts": 32, "topk_group": 1},
            "num_experts_per_tok: expected at most the 4 experts of topk_group = 1 groups, got 8",
        ),
        ({**DEEPSEEK, "mlp_layer_types": ["sparse"]}, "mlp_layer_types: expected 4 entries"),
        ({**DEEPSEEK, "mlp_layer_types": ["moe"] * 4}, "mlp_layer_types: expected 4 entries, each one of"),
        ({**DEEPSEEK, "moe_layer_freq": 0}, "moe_layer_freq: expected a positive integer"),
        ({**DEEPSEEK, "first_k_dense_replace": -1}, "first_k_dense_replace: expected an integer that is not"),
        ({**DEEPSEEK, "scoring_func": "softmax"}, "scoring_func: expected sigmoid, got softmax"),
        ({**DEEPSEEK, "topk_method": "greedy"}, "topk_method: expected noaux_tc, got greedy"),
        ({**DEEPSEEK, "qk_rope_head_dim": 3}, "qk_rope_head_dim: expected an even number, got 3"),
        ({**DEEPSEEK, "kv_lora_rank": None}, "kv_lora_rank: expected a positive integer, got None"),
        ({**DEEPSEEK, "num_key_value_heads": 64}, "num_key_value_heads: expected num_attention_heads = 128"),
        ({**DEEPSEEK, "routed_scaling_factor": 0}, "routed_scaling_factor: expected a positive number"),
        (
            {**DEEPSEEK, "routed_scaling_factor": 1e39},
            r"routed_scaling_factor: .*float32's range, got 1e\+39",
        ),
        (
            {**DEEPSEEK, "rope_scaling": {"type": "yarn", **YARN, "mscale_all_dim": 1e39}},
            r"mscale_all_dim of rope type yarn: expected a positive number in float32's range, got 1e\+39",
        ),
        (
            {**DEEPSEEK, "rope_scaling": {"type": "yarn", **YARN, "attention_factor": 1e39}},
            "attention_factor of rope type yarn: expected a positive number in float32's range",
        ),
        (
            {**DEEPSEEK, "rope_scaling": {"type": "yarn", **YARN, "factor": 1e39}},
            "factor of rope type yarn: expected a positive number in float32's range",
        ),
        ({"model_type": "deepseek_v2"}, "num_experts_per_tok: expected a positive integer, got None"),
        (
            {"model_type": "deepseek_v2", "num_experts_per_tok": 2, "topk_method": "noaux_tc"},
            "topk_method: expected greedy or group_limited_greedy, got noaux_tc",
        ),
        (
            {"model_type": "deepseek_v2", "num_experts_per_tok": 2, "mlp_bias": True},
            "mlp_bias: expected false",
        ),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantised safetensors are not supported"),
    ],
)
def test_refusals_name_the_key(keys: dict[str, Any], message: str) -> None:
    base = {"model_type": "mixtral", "num_hidden_layers": 4, "num_local_experts": 8}
    if "model_type" in keys:
        del base["num_local_experts"]
    with pytest.raises(LoadError, match=message):
        model_config({**base, **keys}, PATH)
