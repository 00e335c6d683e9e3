"""Wrong arguments that Python meets before a compiled module does are named like all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from inferx import ops
from inferx.ops import DenseWeight


def attend(**options: Any) -> None:
    cache = torch.zeros(1, 8, 1, 8)
    lens = torch.tensor([1], dtype=torch.int32)
    cu = torch.tensor([0, 1], dtype=torch.int32)
    ops.paged_attention(torch.zeros(1, 1, 8), cache, cache.clone(), lens[None] * 0, cu, lens, 1.0, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_query_len": -1}, "max_query_len: expected a number >= 0 or None, got -1"),
        ({"max_query_len": 1.5}, "max_query_len: expected a number >= 0 or None, got 1.5"),
        ({"split_size": 0}, "split_size: expected a multiple of 64, got 0"),
        ({"split_size": 65}, "split_size: expected a multiple of 64, got 65"),
        ({"split_size": "64"}, "split_size: expected a multiple of 64, got '64'"),
    ],
)
def test_paged_attention(options: dict[str, Any], message: str) -> None:
    attend()
    with pytest.raises(ValueError, match=f"paged_attention: {message}"):
        attend(**options)


@pytest.mark.parametrize("value", [None, np.zeros((2, 4))])
def test_what_is_no_tensor(value: Any) -> None:
    x = torch.zeros(2, 4)
    calls = [
        ("sample_tokens: logits", lambda: ops.sample_tokens(value)),
        ("apply_logits_processors: logits", lambda: ops.apply_logits_processors(value)),
        ("apply_token_bitmask: logits", lambda: ops.apply_token_bitmask(value, x)),
        ("apply_token_bitmask: bitmask", lambda: ops.apply_token_bitmask(x, value)),
        ("token_logprobs: logits", lambda: ops.token_logprobs(value, torch.tensor([0]))),
        ("token_logprobs: token_ids", lambda: ops.token_logprobs(x, value)),
        ("paged_attention: query", lambda: ops.paged_attention(value, x, x, x, x, x, 1.0)),
        ("merge_attn_states: prefix_output", lambda: ops.merge_attn_states(value, x, x, x)),
        ("embedding: ids", lambda: ops.embedding(value, DenseWeight(x))),
    ]
    for message, call in calls:
        with pytest.raises(TypeError, match=f"{message}: expected a torch.Tensor"):
            call()


def test_numbers_without_dimensions() -> None:
    with pytest.raises(ValueError, match="sample_tokens: logits: expected at least 1 dimension, got"):
        ops.sample_tokens(torch.tensor(1.0))
    with pytest.raises(ValueError, match="token_logprobs: num_top: expected a number >= 0, got -1"):
        ops.token_logprobs(torch.zeros(2, 4), torch.tensor([0, 1]), -1)


def test_a_dense_embedding() -> None:
    table = torch.randn(4, 8)
    weight = DenseWeight(table)
    ids = torch.tensor([0, 3])
    out = torch.zeros(2, 8)
    assert torch.equal(ops.embedding(ids, weight, out), table[ids])
    cases: list[tuple[Any, Any, type[Exception], str]] = [
        (ids.double(), None, ValueError, "ids: expected dtype int64 or int32"),
        (ids[None], None, ValueError, r"ids: expected shape \[T\], got \[1, 2\]"),
        (ids, out.double(), ValueError, "out: expected dtype"),
        (ids, torch.zeros(3, 8), ValueError, r"out: expected shape \[2, 8\], got \[3, 8\]"),
        (ids, torch.zeros(1, 8).expand(2, 8), ValueError, "out: expected rows that are contiguous and apart"),
        (ids, table[1:3], ValueError, "out: expected memory apart from that of table"),
        (torch.tensor([4]), None, IndexError, "ids: expected 0 <= id < 4, got 4"),
        (torch.tensor([-1]), None, IndexError, "ids: expected 0 <= id < 4, got -1"),
    ]
    for wrong, result, error, message in cases:
        with pytest.raises(error, match=f"embedding: {message}"):
            ops.embedding(wrong, weight, result)
