"""Cos/sin rows of every rotary type against transformers, and their independence of batch and growth."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from inferx.layers.rotary import FIRST_TABLE_ROWS, RotaryEmbedding
from inferx.loader.config import RopeConfig

HEAD_DIM = 16
HALF = HEAD_DIM // 2
SHORT = [1.0 + 0.03 * i for i in range(HALF)]
LONG = [1.5 + 0.7 * i for i in range(HALF)]

# name -> (max_position_embeddings, rope_parameters); all of them with one set of frequencies.
STATIC = {
    "default": (512, {}),
    "default-theta": (512, {"rope_theta": 1e6}),
    "linear": (1024, {"rope_type": "linear", "factor": 4.0}),
    "linear-fraction": (1024, {"rope_type": "linear", "factor": 2.5}),
    "llama3": (
        8192,
        {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    ),
    "yarn": (1024, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}),
    "yarn-no-truncate": (
        1024,
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "truncate": False},
    ),
    "yarn-attention-factor": (
        1024,
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 256,
            "attention_factor": 0.75,
        },
    ),
    "yarn-mscale": (
        4096,
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 256,
            "mscale": 1.2,
            "mscale_all_dim": 0.8,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        },
    ),
    # Both correction bounds fall on one dimension.
    "yarn-step": (
        64,
        {
            "rope_type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 1e4,
            "beta_slow": 5e3,
        },
    ),
}


def llama_rope(max_position: int, parameters: dict) -> LlamaRotaryEmbedding:
    return LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=4 * HEAD_DIM,
            num_attention_heads=4,
            max_position_embeddings=max_position,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, **parameters},
        )
    )


def oracle_rows(rope: torch.nn.Module, positions: torch.Tensor) -> torch.Tensor:
    cos, sin = rope(torch.zeros(1, dtype=torch.float32), positions[None])
    half = cos.shape[-1] // 2
    return torch.cat([cos[0, :, :half], sin[0, :, :half]], dim=1)


def ours(max_position: int, parameters: dict) -> RotaryEmbedding:
    fields = {{"rope_theta": "theta"}.get(key, key): value for key, value in parameters.items()}
    for key in ("short_factor", "long_factor"):
        if key in fields:
            fields[key] = tuple(fields[key])
    return RotaryEmbedding(RopeConfig(**fields), HEAD_DIM, max_position)


def rows_of(
    rope: RotaryEmbedding, positions: torch.Tensor, rope_lens: torch.Tensor | None = None
) -> torch.Tensor:
    rows = rope.rows(positions, rope_lens)
    return rows.table[rows.index]


@pytest.mark.parametrize("name", STATIC)
def test_static_types_match_transformers(name: str) -> None:
    max_position, parameters = STATIC[name]
    positions = torch.tensor([0, 1, 2, 10, 31, 255, 256, 257, max_position - 1, 3])
    positions = positions[positions < max_position]
    expected = oracle_rows(llama_rope(max_position, parameters), positions)
    rope = ours(max_position, parameters)
    actual = rows_of(rope, positions)
    assert actual.dtype == torch.float32
    # One ulp of float32 on values up to the attention factor.
    torch.testing.assert_close(actual, expected, rtol=0, atol=2.5e-7)
    assert not rope.depends_on_length
    assert rope.prefix_cache_key(10**6) is None


def test_types_differ() -> None:
    """A type that fell through to another would still match nothing but its own oracle."""
    positions = torch.tensor([200])
    seen = [rows_of(ours(*STATIC[name]), positions) for name in STATIC]
    assert all(not torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


def test_yarn_attention_factor_is_the_papers() -> None:
    assert ours(*STATIC["yarn"]).scaling == pytest.approx(0.1 * math.log(4) + 1, abs=1e-12)
    assert ours(*STATIC["yarn"]).scaling == pytest.approx(1.138629, abs=1e-6)


def test_default_against_float64() -> None:
    positions = torch.arange(0, 500, 3)
    frequencies = torch.tensor([10000.0 ** (-2 * i / HEAD_DIM) for i in range(HALF)], dtype=torch.float64)
    angles = positions.double()[:, None] * frequencies
    expected = torch.cat([angles.cos(), angles.sin()], dim=1)
    error = (rows_of(ours(512, {}), positions).double() - expected).abs().max().item()
    # float32 frequencies and angles: 500 rad * 2^-23.
    assert error < 6e-5


def test_partial_rotary_factor() -> None:
    config = Phi3Config(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        num_key_value_heads=4,
        pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        partial_rotary_factor=0.75,
    )
    positions = torch.arange(0, 300, 11)
    rope = RotaryEmbedding(RopeConfig(partial_rotary_factor=0.75), HEAD_DIM, 4096)
    assert rope.rotary_dim == 12
    torch.testing.assert_close(
        rows_of(rope, positions), oracle_rows(Phi3RotaryEmbedding(config), positions), rtol=0, atol=2.5e-7
    )


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


@pytest.mark.parametrize("length", [1, 50, 255, 256, 257, 300, 512])
def test_dynamic_prompt_uses_its_own_length(length: int) -> None:
    positions = torch.arange(length)
    expected = oracle_rows(llama_rope(256, DYNAMIC), positions)
    rope = ours(256, DYNAMIC)
    actual = rows_of(rope, positions, torch.full((length,), length))
    torch.testing.assert_close(actual, expected, rtol=0, atol=2.5e-7)
    unscaled = rows_of(ours(256, {}), positions)
    assert torch.equal(actual, unscaled) == (length <= 256)
    assert rope.prefix_cache_key(length) == (None if length <= 256 else f"dynamic:{length}")


def test_dynamic_output_tokens_use_their_position() -> None:
    """As transformers with a cache: one more token, one longer sequence, keys of the past unchanged."""
    oracle = llama_rope(256, DYNAMIC)
    oracle_rows(oracle, torch.arange(300))
    rope = ours(256, DYNAMIC)
    for position in (300, 301, 305):
        expected = oracle_rows(oracle, torch.tensor([position]))
        actual = rows_of(rope, torch.tensor([position]), torch.tensor([position + 1]))
        torch.testing.assert_close(actual, expected, rtol=0, atol=2.5e-7)


def test_dynamic_original_length_differs_from_the_limit() -> None:
    """A loader may report the stretched limit and keep the original length beside it."""
    positions, lens = torch.arange(400), torch.full((400,), 400)
    stretched = ours(512, {**DYNAMIC, "original_max_position_embeddings": 256})
    assert torch.equal(rows_of(stretched, positions, lens), rows_of(ours(256, DYNAMIC), positions, lens))


def longrope_oracle(max_position: int, original: int, **extra: float) -> Phi3RotaryEmbedding:
    return Phi3RotaryEmbedding(
        Phi3Config(
            hidden_size=4 * HEAD_DIM,
            num_attention_heads=4,
            num_key_value_heads=4,
            pad_token_id=0,
            max_position_embeddings=max_position,
            original_max_position_embeddings=original,
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": SHORT,
                "long_factor": LONG,
                **extra,
            },
        )
    )


@pytest.mark.parametrize("length", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("extra", [{}, {"attention_factor": 1.25}, {"factor": 32.0}], ids=str)
def test_longrope_matches_transformers(length: int, extra: dict) -> None:
    positions = torch.arange(length)
    expected = oracle_rows(longrope_oracle(256, 64, **extra), positions)
    # Loaders fill in the factor that a file leaves to the two lengths.
    parameters = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG, "factor": 4.0, **extra}
    rope = ours(256, {**parameters, "original_max_position_embeddings": 64})
    actual = rows_of(rope, positions, torch.full((length,), length))
    torch.testing.assert_close(actual, expected, rtol=0, atol=3.5e-7)
    assert rope.prefix_cache_key(length) == (None if length <= 64 else "longrope")


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_mixed_batches_give_the_same_rows(kind: str) -> None:
    """Rows of a token do not depend, in any bit, on the tokens beside it."""
    if kind == "dynamic":
        parameters = {**DYNAMIC, "original_max_position_embeddings": 64}
    else:
        parameters = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}
        parameters["original_max_position_embeddings"] = 64
    requests = [
        (torch.arange(start, stop), length)
        for start, stop, length in [
            (0, 10, 10),
            (0, 64, 64),
            (30, 65, 65),
            (7, 130, 131),
            (130, 131, 131),
            (90, 91, 91),
            (63, 64, 64),
        ]
    ]
    alone = [
        rows_of(ours(256, parameters), positions, torch.full_like(positions, length))
        for positions, length in requests
    ]
    rope = ours(256, parameters)
    positions = torch.cat([positions for positions, _ in requests])
    lens = torch.cat([torch.full_like(positions, length) for positions, length in requests])
    together = rows_of(rope, positions, lens)
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(rows_of(rope, positions.flip(0), lens.flip(0)), together.flip(0))


def test_growing_table_keeps_its_rows() -> None:
    rope = ours(100_000, {})
    small = rows_of(rope, torch.arange(100))
    assert len(rope.rows(torch.tensor([3])).table) == FIRST_TABLE_ROWS
    large = rows_of(rope, torch.tensor([FIRST_TABLE_ROWS, 5 * FIRST_TABLE_ROWS - 1]))
    assert torch.equal(rows_of(rope, torch.arange(100)), small)
    at_once = ours(100_000, {})
    assert torch.equal(rows_of(at_once, torch.tensor([FIRST_TABLE_ROWS, 5 * FIRST_TABLE_ROWS - 1])), large)
    assert len(rope.rows(torch.tensor([99_999])).table) == 100_000


def test_table_is_no_larger_than_the_context() -> None:
    rope = ours(100, {})
    assert len(rope.rows(torch.tensor([3])).table) == 100


def test_frequency_factors_divide() -> None:
    """GGUF files of Llama 3.1 carry the scaling as one divisor per frequency."""
    max_position, parameters = STATIC["llama3"]
    plain = {"rope_theta": parameters["rope_theta"]}
    scaled = ours(max_position, parameters)
    unscaled = ours(max_position, plain)
    factors = tuple((unscaled.base_frequencies / scaled.base_frequencies).tolist())
    assert min(factors) == 1.0
    assert max(factors) == pytest.approx(parameters["factor"])
    rope = ours(max_position, {**plain, "freq_factors": factors})
    positions = torch.arange(0, 400, 9)
    torch.testing.assert_close(rows_of(rope, positions), rows_of(scaled, positions), rtol=0, atol=5e-5)


def test_empty_batch_and_missing_lengths() -> None:
    empty = torch.empty(0, dtype=torch.int64)
    assert rows_of(ours(64, {}), empty).shape == (0, HEAD_DIM)
    assert rows_of(ours(64, DYNAMIC), empty, empty).shape == (0, HEAD_DIM)
    with pytest.raises(ValueError, match="rope_lens"):
        ours(64, DYNAMIC).rows(torch.tensor([0]))
