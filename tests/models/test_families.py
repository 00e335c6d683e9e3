"""Every family against transformers on tiny random checkpoints, through files, loader and the real ops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_harness import (
    VOCAB,
    PagedRunner,
    check_against_oracle,
    check_threads,
    check_token_by_token,
    empty_step,
    load,
    prompt,
    save,
    tiny_model,
)
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def llama(**fields: Any) -> LlamaConfig:
    return LlamaConfig(**{**BASE, **fields})


def mistral(**fields: Any) -> MistralConfig:
    return MistralConfig(**{**BASE, "sliding_window": None, **fields})


def qwen2(**fields: Any) -> Qwen2Config:
    return Qwen2Config(**{**BASE, **fields})


def qwen3(**fields: Any) -> Qwen3Config:
    return Qwen3Config(**{**BASE, "head_dim": 24, **fields})


def gemma3(**fields: Any) -> Gemma3TextConfig:
    local = {
        "head_dim": 32,
        "num_hidden_layers": 3,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 20,
        "tie_word_embeddings": True,
    }
    return Gemma3TextConfig(**{**BASE, **local, **fields})


def phi3(**fields: Any) -> Phi3Config:
    return Phi3Config(**{**BASE, **fields})


# 9/3, 5/1 and 7/7 heads of 8, 16 and 8: no count is a power of two.
HEADS: dict[str, dict[str, int]] = {
    "9q3kv": {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72},
    "5q1kv": {"num_attention_heads": 5, "num_key_value_heads": 1, "hidden_size": 80},
    "7q7kv": {"num_attention_heads": 7, "num_key_value_heads": 7, "hidden_size": 56},
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
}

CASES: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": llama,
    "llama-tied": lambda: llama(tie_word_embeddings=True),
    **{f"llama-{name}": lambda heads=heads: llama(**heads) for name, heads in HEADS.items()},
    **{
        f"llama-{name}-tied": lambda heads=heads: llama(**heads, tie_word_embeddings=True)
        for name, heads in HEADS.items()
    },
    "llama-attention-bias": lambda: llama(attention_bias=True),
    "llama-mlp-bias": lambda: llama(mlp_bias=True),
    "llama-both-biases": lambda: llama(attention_bias=True, mlp_bias=True, **HEADS["9q3kv"]),
    "llama-head-dim-32": lambda: llama(head_dim=32),
    "llama-head-dim-null": lambda: llama(head_dim=None),
    "llama-gelu": lambda: llama(hidden_act="gelu"),
    "llama-gelu-tanh": lambda: llama(hidden_act="gelu_pytorch_tanh"),
    "llama-rope-linear": lambda: llama(
        rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}
    ),
    "llama-rope-llama3": lambda: llama(rope_parameters=LLAMA3),
    "llama-rope-theta": lambda: llama(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
    "mistral": mistral,
    "mistral-window": lambda: mistral(sliding_window=7, **HEADS["9q3kv"]),
    "mistral-head-dim": lambda: mistral(head_dim=40, sliding_window=16),
    # transformers refuses these sizes for Llama.
    "mistral-head-dim-16-of-72": lambda: mistral(
        hidden_size=72, num_attention_heads=5, num_key_value_heads=5, head_dim=16
    ),
    "qwen3-head-dim-16-of-72": lambda: qwen3(
        hidden_size=72, num_attention_heads=5, num_key_value_heads=1, head_dim=16
    ),
    "qwen2": qwen2,
    "qwen2-tied-7q1kv": lambda: qwen2(
        num_attention_heads=7, num_key_value_heads=1, hidden_size=56, tie_word_embeddings=True
    ),
    "qwen2-window": lambda: qwen2(
        use_sliding_window=True, sliding_window=6, max_window_layers=1, num_hidden_layers=3
    ),
    "qwen2-window-unused": lambda: qwen2(use_sliding_window=False, sliding_window=6),
    "qwen3": qwen3,
    "qwen3-tied-5q1kv": lambda: qwen3(**HEADS["5q1kv"], head_dim=32, tie_word_embeddings=True),
    "qwen3-attention-bias": lambda: qwen3(attention_bias=True),
    "gemma3": gemma3,
    "gemma3-untied-5q1kv": lambda: gemma3(**HEADS["5q1kv"], head_dim=8, tie_word_embeddings=False),
    "gemma3-global-rope-scaling": lambda: gemma3(rope_parameters=GEMMA_ROPE),
    "gemma3-softcap": lambda: gemma3(final_logit_softcapping=2.5),
    "gemma3-attention-bias": lambda: gemma3(attention_bias=True),
    "phi3": phi3,
    "phi3-tied-9q3kv": lambda: phi3(**HEADS["9q3kv"], tie_word_embeddings=True),
    "phi3-window": lambda: phi3(sliding_window=8),
    "phi3-partial-rotary": lambda: phi3(partial_rotary_factor=0.75),
}


@pytest.mark.parametrize("name", CASES)
def test_matches_transformers(name: str, tmp_path: Path) -> None:
    """Logits within 1e-3, the same bits whole, chunked and batched, and the same greedy tokens."""
    config = CASES[name]()
    oracle = tiny_model(config, seed=len(name))
    model = load(save(oracle, tmp_path))
    check_against_oracle(oracle, model, prompt(61, seed=len(name)))


@pytest.mark.parametrize("name", ["llama-9q3kv", "mistral-window", "qwen2", "qwen3", "gemma3", "phi3"])
def test_token_by_token_is_bit_identical(name: str, tmp_path: Path) -> None:
    oracle = tiny_model(CASES[name](), seed=5)
    check_token_by_token(load(save(oracle, tmp_path)), prompt(40, seed=5))


@pytest.mark.parametrize("name", ["llama-9q3kv", "gemma3"])
def test_threads_change_no_bit(name: str, tmp_path: Path) -> None:
    model = load(save(tiny_model(CASES[name](), seed=5), tmp_path))
    check_threads(model, prompt(70, seed=5))


def test_empty_step(tmp_path: Path) -> None:
    model = load(save(tiny_model(llama()), tmp_path))
    hidden = empty_step(model)
    assert hidden.shape == (0, 64)
    assert model.compute_logits(hidden).shape == (0, VOCAB)


def test_windows_matter(tmp_path: Path) -> None:
    """Guards the window cases above: without the window the logits would differ."""
    with_window = tiny_model(CASES["mistral-window"](), seed=1)
    without = tiny_model(mistral(**HEADS["9q3kv"]), seed=1)
    ids = prompt(40)[None]
    with torch.no_grad():
        assert (with_window(ids).logits - without(ids).logits).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_cache_stays_close(dtype: torch.dtype, tmp_path: Path) -> None:
    oracle = tiny_model(llama(**HEADS["9q3kv"]), seed=2)
    model = load(save(oracle, tmp_path))
    ids = prompt(50)
    full = PagedRunner(model).whole(ids)
    half = PagedRunner(model, dtype=dtype).whole(ids)
    error = (full - half).abs().max().item()
    assert 0 < error < (0.05 if dtype == torch.float16 else 0.4)
    assert torch.equal(PagedRunner(model, dtype=dtype, seed=9).chunked(ids, [9, 2]), half)
