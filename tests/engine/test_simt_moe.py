"""Mixtures of experts and latent attention on the CUDA kernels' source: the CPU engine's tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.core_harness import drive, make_core, request, save_with_tokenizer
from tests.engine.test_simt_engine import (
    BASE,
    PROMPTS,
    check_continuous_batching,
    check_shared_prefixes_forks_and_preemption,
    greedy,
    prompt_logprobs,
    reference,
    rms,
    simt,
)
from tests.models.model_harness import tiny_model
from transformers import DeepseekV3Config, GptOssConfig, MixtralConfig, PretrainedConfig, Qwen2MoeConfig

from inferx.errors import InvalidRequestError

__all__ = ["simt"]

LATENT: dict[str, Any] = {
    **{name: value for name, value in BASE.items() if name != "head_dim"},
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "mixtral": lambda: MixtralConfig(**BASE, num_local_experts=5, num_experts_per_tok=2),
    "qwen2_moe": lambda: Qwen2MoeConfig(
        **BASE,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=40,
        mlp_only_layers=[0],
    ),
    "deepseek_v3": lambda: DeepseekV3Config(**LATENT),
    "gpt_oss": lambda: GptOssConfig(
        **{**BASE, "intermediate_size": 40},
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=11,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=["mixtral", "deepseek_v3"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param))


def save_tiny(family: str, directory: Path) -> Path:
    return save_with_tokenizer(tiny_model(FAMILIES[family](), seed=5), directory)


def test_continuous_batching(tiny: Path) -> None:
    check_continuous_batching(tiny, 8)


def test_shared_prefixes_forks_and_preemption(shared: Path, seed: int) -> None:
    """Of caches with and without values."""
    check_shared_prefixes_forks_and_preemption(shared, seed)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_sixteen_bits(family: str, dtype: str, tmp_path: Path) -> None:
    """As close to float32 as transformers in the same type.

    All experts are chosen: of two that are as good as each other, 16 bits may choose another than 32.
    """
    config = FAMILIES[family]()
    config.num_experts_per_tok = getattr(config, "num_local_experts", None) or config.num_experts
    config.n_group = config.topk_group = 1
    tiny = save_with_tokenizer(tiny_model(config, seed=5), tmp_path)
    ids = PROMPTS[4] + PROMPTS[1]
    exact = reference(tiny, ids, torch.float32)
    theirs = rms(reference(tiny, ids, getattr(torch, dtype)) - exact)
    core = make_core(tiny, device="simt", dtype=dtype, max_num_batched_tokens=32)
    mine = rms(prompt_logprobs(core, ids) - exact)
    assert 0.1 * theirs < mine < 1.25 * theirs


def test_latents_have_no_float8_cache(tmp_path: Path) -> None:
    path = save_tiny("deepseek_v3", tmp_path)
    with pytest.raises(
        InvalidRequestError, match=r"cache of latents \(multi-head latent attention\), got 'fp8'"
    ):
        make_core(path, device="simt", dtype="bfloat16", kv_cache_dtype="fp8")
    drive(make_core(path, kv_cache_dtype="bfloat16"), [(0, request("a", PROMPTS[1], greedy(3)))])
