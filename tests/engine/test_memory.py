"""The memory plan: what fits, what is refused, and the table in both cases."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.models.known_configs import DEEPSEEK_V3, MIXTRAL_8X7B

from inferx.engine.args import EngineArgs
from inferx.engine.device import Device, kv_cache_dtype
from inferx.engine.memory import (
    DEFAULT_KV_CEILING,
    GIB,
    RESERVE,
    kv_bytes_per_token,
    parameters_text,
    plan_memory,
    resolve_max_model_len,
)
from inferx.errors import InvalidRequestError, MemoryBudgetError
from inferx.loader.config import ModelConfig, RopeConfig
from inferx.models.parameters import count_parameters
from inferx.models.weights import ParameterCount

CPU = Device("cpu", torch.device("cpu"))
CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=8192,
)
TOKEN_BYTES = 2 * 30 * 3 * 64 * 4


def plan(available: int, weights: int = 100 << 20, **options: object):  # type: ignore[no-untyped-def]
    args = EngineArgs(**options)
    kv_dtype = kv_cache_dtype(CPU, args.kv_cache_dtype, torch.float32)
    return plan_memory(
        CONFIG, args, weight_bytes=weights, kv_dtype=kv_dtype, max_model_len=8192, available=available
    )


def test_the_pool_takes_what_is_free_but_not_more_than_the_ceiling() -> None:
    small, large = plan(2 * GIB), plan(64 * GIB)
    assert small.kv_bytes_per_token == TOKEN_BYTES
    assert small.total + RESERVE <= 2 * GIB
    assert small.kv_cache > GIB
    assert DEFAULT_KV_CEILING - 16 * TOKEN_BYTES < large.kv_cache <= DEFAULT_KV_CEILING


def test_the_pool_is_not_larger_than_all_requests_at_full_length() -> None:
    assert plan(64 * GIB, max_num_seqs=2).num_blocks == 2 * 8192 // 16


@pytest.mark.parametrize(
    ("options", "blocks"),
    [
        ({"num_blocks": 77}, 77),
        ({"kv_cache_memory_bytes": 16 * TOKEN_BYTES * 5 + 1}, 5),
        ({"kv_cache_memory_bytes": 16 * TOKEN_BYTES * 5, "kv_cache_dtype": "float16"}, 10),
    ],
)
def test_explicit_sizes(options: dict[str, object], blocks: int) -> None:
    assert plan(8 * GIB, **options).num_blocks == blocks


@pytest.mark.parametrize(
    "options", [{"num_blocks": 10**6}, {"kv_cache_memory_bytes": 100}, {"kv_cache_memory_bytes": 9 * GIB}]
)
def test_what_does_not_fit_is_refused_with_the_table(options: dict[str, object]) -> None:
    with pytest.raises(MemoryBudgetError) as caught:
        plan(8 * GIB, **options)
    for label in ("weights", "KV cache per token", "blocks of 16 tokens", "largest batch"):
        assert label in str(caught.value)


def test_weights_alone_may_be_too_large() -> None:
    with pytest.raises(MemoryBudgetError, match="smaller model"):
        plan(GIB, weights=2 * GIB)


@pytest.mark.parametrize(
    ("rope", "limit"),
    [
        (RopeConfig(), 8192),
        (RopeConfig(rope_type="linear", factor=4.0), 4 * 8192),
        (RopeConfig(rope_type="dynamic", factor=2.0), 2 * 8192),
        # These include the factor (case D06: never multiplied a second time).
        (RopeConfig(rope_type="yarn", factor=4.0, original_max_position_embeddings=2048), 8192),
        (RopeConfig(rope_type="llama3", factor=8.0, original_max_position_embeddings=1024), 8192),
        (RopeConfig(rope_type="longrope", factor=2.0, original_max_position_embeddings=4096), 8192),
    ],
)
def test_scaled_contexts(rope: RopeConfig, limit: int) -> None:
    assert resolve_max_model_len(dataclasses.replace(CONFIG, rope=rope), None) == limit


def test_the_table_says_total_and_active_parameters() -> None:
    """Mixtral 8x7B's configuration alone."""
    args = EngineArgs()
    made = plan_memory(
        MIXTRAL_8X7B,
        args,
        weight_bytes=93 * 10**9,
        kv_dtype=torch.float32,
        max_model_len=1024,
        available=128 * GIB,
        parameters=count_parameters(MIXTRAL_8X7B),
    )
    assert made.rows()[0] == ("parameters", "46.7 B total, 12.9 B active per token (93.4 GB at 16 bit)")
    dense = dataclasses.replace(made, parameters=count_parameters(CONFIG))
    assert dense.rows()[0] == ("parameters", "162.8 M (325.7 MB at 16 bit)")
    assert "162.8 M" in dense.table()


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), (999, "999"), (1000, "1.0 K"), (999_949, "999.9 K"), (999_951, "1.0 M"), (671e9, "671.0 B"),
     (1.5e15, "1500.0 T")],
)  # fmt: skip
def test_counts_in_words(value: float, text: str) -> None:
    assert parameters_text(ParameterCount(int(value), int(value))).startswith(f"{text} (")


def test_a_token_of_latents_is_small() -> None:
    """DeepSeek-V3: 576 values a layer, where keys and values of 128 heads would be 40,960."""
    assert kv_bytes_per_token(DEEPSEEK_V3, torch.bfloat16) == 61 * 576 * 2


def test_the_context_is_at_most_the_models() -> None:
    assert resolve_max_model_len(CONFIG, None) == 8192
    assert resolve_max_model_len(CONFIG, 100) == 100
    with pytest.raises(InvalidRequestError, match=r"8192.*9000"):
        resolve_max_model_len(CONFIG, 9000)
