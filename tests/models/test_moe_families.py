"""Every family with experts, and latent attention, against transformers on tiny random checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_harness import (
    PagedRunner,
    check_against_oracle,
    check_threads,
    check_token_by_token,
    load,
    prompt,
    save,
    tiny_model,
)
from moe_configs import CASES, deepseek_v3, gpt_oss, mixtral, olmoe
from transformers import PreTrainedModel

FAMILIES = ["mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "deepseek-v2", "deepseek-v3", "gpt-oss"]


@pytest.mark.parametrize("name", CASES)
def test_matches_transformers(name: str, tmp_path: Path) -> None:
    """Logits within 1e-3, the same bits whole, chunked and batched, and the same greedy tokens."""
    oracle = tiny_model(CASES[name](), seed=len(name))
    model = load(save(oracle, tmp_path))
    check_against_oracle(oracle, model, prompt(61, seed=len(name)))


@pytest.mark.parametrize("name", FAMILIES)
def test_token_by_token_is_bit_identical(name: str, tmp_path: Path) -> None:
    oracle = tiny_model(CASES[name](), seed=5)
    check_token_by_token(load(save(oracle, tmp_path)), prompt(40, seed=5))


@pytest.mark.parametrize("name", ["qwen2-moe", "deepseek-v3"])
def test_threads_change_no_bit(name: str, tmp_path: Path) -> None:
    model = load(save(tiny_model(CASES[name](), seed=5), tmp_path))
    check_threads(model, prompt(70, seed=5))


def logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(ids[None]).logits[0]


def test_what_the_cases_vary_matters(tmp_path: Path) -> None:
    """Guards the cases above: without each of these the logits would differ."""
    ids = prompt(40)
    for varied, plain in (
        (olmoe(clip_qkv=0.7), olmoe()),
        (gpt_oss(sliding_window=11), gpt_oss(sliding_window=400)),
        (gpt_oss(swiglu_limit=1.5), gpt_oss(swiglu_limit=100.0)),
        (deepseek_v3(n_group=4, topk_group=2), deepseek_v3(n_group=1, topk_group=1)),
        (deepseek_v3(norm_topk_prob=True), deepseek_v3(norm_topk_prob=False)),
        (mixtral(num_experts_per_tok=2), mixtral(num_experts_per_tok=1)),
    ):
        a, b = tiny_model(varied, seed=1), tiny_model(plain, seed=1)
        assert (logits(a, ids) - logits(b, ids)).abs().max() > 0.1
    for config, name in ((deepseek_v3(), "e_score_correction_bias"), (gpt_oss(), "sinks")):
        a, b = tiny_model(config, seed=1), tiny_model(config, seed=1)
        for key, value in b.state_dict().items():
            if key.endswith(name):
                value.fill_(-100.0 if name == "sinks" else 0.0)
        assert (logits(a, ids) - logits(b, ids)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_cache_of_latents_stays_close(dtype: torch.dtype, tmp_path: Path) -> None:
    model = load(
        save(tiny_model(deepseek_v3(num_experts_per_tok=12, n_group=1, topk_group=1), seed=2), tmp_path)
    )
    ids = prompt(50)
    full = PagedRunner(model).whole(ids)
    half = PagedRunner(model, dtype=dtype).whole(ids)
    error = (full - half).abs().max().item()
    assert 0 < error < (0.1 if dtype == torch.float16 else 0.8)
    assert torch.equal(PagedRunner(model, dtype=dtype, seed=9).chunked(ids, [9, 2]), half)
