"""moe_sum against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from op_checks import FLOATS, assert_close, assert_same_bits

from inferx import ops


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("hidden", [1, 7, 64, 100, 2050])
@pytest.mark.parametrize("top_k", [1, 2, 8])
def test_against_float64(top_k: int, hidden: int, dtype: torch.dtype) -> None:
    x = torch.rand(9, top_k, hidden).to(dtype) + 0.5  # of one sign: the error is relative
    assert_close(ops.moe_sum(x), x.double().sum(1), 8.0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_order_is_that_of_k(dtype: torch.dtype) -> None:
    x = (torch.randn(5, 6, 33) * 1000).to(dtype)
    total = torch.zeros(5, 33)
    for j in range(6):
        total = total + x[:, j].float()
    assert_same_bits(ops.moe_sum(x), total.to(dtype))


def test_strides_and_given_output() -> None:
    wide = torch.randn(8, 6, 50)
    x = wide[::2, 1:4, 3:45]
    expected = ops.moe_sum(x.contiguous())
    assert_same_bits(ops.moe_sum(x), expected)
    expanded = x[:, :1].expand(-1, 3, -1)
    assert_same_bits(ops.moe_sum(expanded), ops.moe_sum(expanded.contiguous()))
    out = torch.zeros(4, 44)
    assert ops.moe_sum(x, out=out[:, 1:43]).data_ptr() == out[:, 1:].data_ptr()
    assert_same_bits(out[:, 1:43], expected)
    assert not out[:, 0].any()
    assert not out[:, 43].any()


def test_empties() -> None:
    assert ops.moe_sum(torch.empty(0, 2, 8)).shape == (0, 8)
    assert ops.moe_sum(torch.empty(3, 2, 0)).shape == (3, 0)
    assert ops.moe_sum(torch.empty(2, 0, 3)).tolist() == [[0.0] * 3] * 2


def test_a_token_does_not_depend_on_its_batch_or_threads() -> None:
    x = torch.randn(200, 4, 700)
    together = ops.moe_sum(x)
    assert_same_bits(ops.moe_sum(x[77:78].clone()), together[77:78])
    before = ops.get_num_threads()
    try:
        ops.set_num_threads(3)
        assert_same_bits(ops.moe_sum(x), together)
    finally:
        ops.set_num_threads(before)


X = torch.ones(4, 2, 8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.moe_sum(X[0]), "moe_sum: input: expected at least 3 dimensions"),
        (lambda: ops.moe_sum(X.double()), "moe_sum: input: expected dtype float32 or .* got float64"),
        (lambda: ops.moe_sum(X.transpose(1, 2)), "input: expected a contiguous last dimension"),
        (lambda: ops.moe_sum(X, torch.ones(4, 7)), r"out: expected shape \[T=4, H=8\], got \[4, 7\]"),
        (
            lambda: ops.moe_sum(X, torch.ones(4, 8).half()),
            "out: expected dtype float32 as input, got float16",
        ),
        (lambda: ops.moe_sum(X, X[:, 0]), "out: expected memory apart from that of input"),
        (lambda: ops.moe_sum(X, torch.ones(1, 8).expand(4, 8)), "out: expected memory of its own"),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_schema_and_fake() -> None:
    arguments = (torch.empty(3, 8), torch.randn(3, 2, 8))
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.inferx.moe_sum.default, arguments, test_utils=checks)
