"""Configurations that no layer can run are refused with the field's name and value; sizes and registry."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_harness import load, save, tiny_model
from test_families import gemma3, llama, mistral

from inferx.errors import LoadError
from inferx.loader.config import MLAConfig, ModelConfig, MoEConfig, RopeConfig
from inferx.models import model_class
from inferx.models.registry import FAMILIES
from inferx.models.validation import validate_config

GOOD = ModelConfig(
    architecture="llama",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=16,
    max_position_embeddings=128,
)


UNKNOWN_ROPE = RopeConfig(rope_type="ntk")  # type: ignore[arg-type]
LONGROPE_TOO_SHORT = RopeConfig(
    rope_type="longrope",
    original_max_position_embeddings=64,
    short_factor=(1.0,) * 8,
    long_factor=(1.0,) * 7,
)


def test_good_configuration_passes() -> None:
    validate_config(GOOD, "model")
    validate_config(replace(GOOD, head_dim=8), "model")
    validate_config(replace(GOOD, head_dim=256), "model")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_key_value_heads": 4}, r"num_attention_heads \(6\).*num_key_value_heads \(4\)"),
        ({"num_key_value_heads": 0}, "num_key_value_heads must be at least 1, got 0"),
        ({"head_dim": 12}, "head_dim must be a multiple of 8 up to 256, got 12"),
        ({"head_dim": 264}, "head_dim must be a multiple of 8 up to 256, got 264"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be at least 1"),
        ({"hidden_act": "relu"}, r"hidden_act must be one of .*silu.*got 'relu'"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"sliding_window": 0}, "sliding_window must be at least 1, got 0"),
        ({"layer_types": ("full_attention",)}, "layer_types has 1 entries for 2 layers"),
        ({"layer_types": ("full_attention", "linear_attention")}, "linear_attention"),
        ({"layer_types": ("full_attention", "sliding_attention")}, "sliding_window is not set"),
        ({"rope": UNKNOWN_ROPE}, r"rope_type must be one of .*got 'ntk'"),
        ({"rope": RopeConfig(partial_rotary_factor=0.2)}, "3 rotating elements"),
        ({"rope": RopeConfig(partial_rotary_factor=1.5)}, "24 rotating elements"),
        ({"rope": RopeConfig(theta=0.0)}, "theta must be above 1"),
        ({"rope": RopeConfig(rope_type="linear", factor=0.0)}, "factor above 0"),
        ({"rope": RopeConfig(rope_type="yarn", factor=2.0)}, "needs original_max_position_embeddings"),
        ({"rope": LONGROPE_TOO_SHORT}, "long_factor must have 8 entries, got 7"),
        ({"rope": RopeConfig(freq_factors=(1.0,))}, "freq_factors must have 8 entries, got 1"),
        ({"rope": RopeConfig(rope_type="dynamic", partial_rotary_factor=0.125)}, "at least 4"),
        ({"rope_local": RopeConfig(theta=-1.0)}, "rope_local"),
    ],
)
def test_bad_configurations(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        validate_config(replace(GOOD, **fields), "model")


MOE = MoEConfig(num_experts=12, top_k=3, intermediate_size=40, layers=(False, True))
MLA = MLAConfig(32, 20, 8, 12)


def test_good_experts_and_latents_pass() -> None:
    validate_config(replace(GOOD, moe=MOE, mla=MLA, head_dim=28), "model", ("moe", "mla"))
    validate_config(
        replace(GOOD, mla=MLAConfig(512, 128, 64, 128), head_dim=192 * 2), "model", ("moe", "mla")
    )
    sparse = replace(MOE, layers=(True, True))
    validate_config(replace(GOOD, moe=sparse, hidden_act="swigluoai"), "model", ("moe",))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_experts": 0}, "num_experts must be from 1 to 512, got 0"),
        ({"num_experts": 513}, "num_experts must be from 1 to 512, got 513"),
        ({"top_k": 13}, r"top_k must be from 1 to num_experts \(12\), got 13"),
        ({"top_k": 0}, "top_k must be from 1"),
        ({"num_experts": 60, "top_k": 33}, "top_k must be at most 32, got 33"),
        ({"num_experts": 66, "num_groups": 33, "top_groups": 2}, "num_groups must be at most 32, got 33"),
        ({"intermediate_size": 0}, "intermediate_size must be at least 1"),
        ({"layers": (True,)}, "layers has 1 entries for 2 layers"),
        ({"scoring": "tanh"}, "scoring must be softmax or sigmoid, got 'tanh'"),
        ({"num_groups": 5}, r"num_groups must divide num_experts \(12\), got 5"),
        ({"num_groups": 4, "top_groups": 5}, r"top_groups must be from 1 to num_groups \(4\), got 5"),
        ({"num_groups": 12, "top_groups": 2}, r"top_k \(3\) must be at most the experts of top_groups"),
        ({"num_groups": 12, "top_groups": 4, "score_bias": True}, "less than 2 of 12 experts"),
        ({"shared_intermediate_size": -1}, "shared_intermediate_size must not be negative"),
        ({"shared_gate": True}, "there is no shared expert"),
    ],
)
def test_bad_experts(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=f"model: moe: .*{message}"):
        validate_config(replace(GOOD, moe=replace(MOE, **fields)), "model", ("moe",))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kv_lora_rank": 36}, "kv_lora_rank must be a multiple of 8, got 36"),
        ({"qk_rope_head_dim": 4}, "must be a multiple of 8 up to 1024, got 36"),
        ({"kv_lora_rank": 1024}, "must be a multiple of 8 up to 1024, got 1032"),
        ({"v_head_dim": 0}, "v_head_dim must be at least 1, got 0"),
        ({"q_lora_rank": 0}, "q_lora_rank must be at least 1, got 0"),
    ],
)
def test_bad_latents(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=f"model: mla: .*{message}"):
        validate_config(replace(GOOD, mla=replace(MLA, **fields)), "model", ("mla",))


def test_scales_beyond_float32() -> None:
    yarn = RopeConfig(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
    latent = replace(GOOD, mla=MLA, head_dim=28)
    for config, message in (
        (replace(latent, rope=replace(yarn, mscale=1e38, mscale_all_dim=1e38)), r"mscale_all_dim 1e\+38"),
        (replace(latent, rope=replace(yarn, attention_factor=1e20)), r"attention_factor 1e\+20"),
        (replace(GOOD, rope=replace(yarn, attention_factor=3e38)), r"attention_factor 3e\+38"),
        (
            replace(GOOD, rope_local=replace(yarn, mscale=1e38, mscale_all_dim=1.0)),
            r"mscale 1e\+38",
        ),
        (replace(GOOD, query_pre_attn_scalar=1e-80), r"query_pre_attn_scalar 1e-80"),
    ):
        with pytest.raises(LoadError, match=rf"model: rope.*: expected a scale of .*range, got .*{message}"):
            validate_config(config, "model", ("mla",) if config.mla else ())
    good = replace(latent, rope=replace(yarn, mscale=1e15, mscale_all_dim=1e15, attention_factor=10.0))
    validate_config(good, "model", ("mla",))


def test_parts_of_other_families() -> None:
    with pytest.raises(LoadError, match="moe must not be set for llama"):
        validate_config(replace(GOOD, moe=MOE), "model")
    with pytest.raises(LoadError, match="mla must be set for deepseek_v2"):
        validate_config(replace(GOOD, architecture="deepseek_v2"), "model", ("moe", "mla"))
    with pytest.raises(LoadError, match=r"hidden_act must be one of silu.*got 'swigluoai'"):
        validate_config(replace(GOOD, moe=MOE, hidden_act="swigluoai"), "model", ("moe",))
    with pytest.raises(LoadError, match="clip_qkv must be above 0, got -1"):
        validate_config(replace(GOOD, clip_qkv=-1.0), "model")


def test_registry_knows_every_name() -> None:
    assert [family.architecture for family in FAMILIES] == [
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma3",
        "phi3",
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
        "olmoe",
        "deepseek_v2",
        "deepseek_v3",
        "gpt_oss",
    ]
    for family in FAMILIES:
        for name in (family.architecture, *family.hf_architectures, *family.gguf_architectures):
            assert model_class(name) is family
    with pytest.raises(LoadError, match=r"'GPT2LMHeadModel'.*llama, mistral"):
        model_class("GPT2LMHeadModel")


def test_sizes_follow_the_true_head_dim(tmp_path: Path) -> None:
    model = load(save(tiny_model(mistral(head_dim=40)), tmp_path))
    assert model.num_kv_layers == 2
    assert model.kv_cache_shape(7, 16) == (7, 16, 2, 40)
    assert model.kv_bytes_per_token(torch.float32) == 2 * 2 * 2 * 40 * 4
    assert model.kv_bytes_per_token(torch.bfloat16) == 2 * 2 * 2 * 40 * 2
    assert model.prefix_cache_key(100) is None


def test_wrong_number_of_caches(tmp_path: Path) -> None:
    model = load(save(tiny_model(llama()), tmp_path))
    ids = torch.tensor([5])
    with pytest.raises(ValueError, match="kv: expected 2"):
        model.forward(ids, ids, None, [], None)  # type: ignore[arg-type]


def test_gemma_completes_its_configuration(tmp_path: Path) -> None:
    model = load(save(tiny_model(gemma3()), tmp_path))
    assert model.config.qk_norm
    assert model.config.embedding_scale == 8.0
