"""rms_norm and fused_add_rms_norm against float64, and the bits of a row whatever surrounds it."""

from __future__ import annotations

import pytest
import torch
from op_checks import FLOATS, assert_close, assert_same_bits, strided_views
from torch import Tensor

from inferx import ops

EPS = 1e-5
HIDDEN = [1, 7, 8, 100, 576, 3584, 3588, 4097, 16384]


def float32_eps(hidden: int) -> float:
    """The sum of squares adds up to hidden / 16 terms one after the other (base's four vectors of four)."""
    return 4 + hidden / 2048


def reference(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
    x = x.double()
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.double()


def row_sum(x: Tensor, residual: Tensor) -> Tensor:
    """What the residual is after the addition: one float32 addition, rounded to the dtype."""
    return (residual.float() + x.float()).to(x.dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_rms_norm(rows: int, hidden: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(rows, hidden).to(dtype), torch.randn(hidden).to(dtype)
    before = x.clone()
    out = ops.rms_norm(x, weight, EPS)
    assert out.dtype == dtype
    assert_close(out, reference(x, weight), float32_eps(hidden))
    assert_same_bits(x, before)


@pytest.mark.parametrize("dtype", FLOATS)
def test_many_short_rows(dtype: torch.dtype) -> None:
    x, weight = torch.randn(65537, 9).to(dtype), torch.randn(9).to(dtype)
    assert_close(ops.rms_norm(x, weight, EPS), reference(x, weight))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_fused_add_rms_norm(rows: int, hidden: int, dtype: torch.dtype) -> None:
    x, residual = torch.randn(rows, hidden).to(dtype), torch.randn(rows, hidden).to(dtype)
    weight = torch.randn(hidden).to(dtype)
    total = row_sum(x, residual)
    ops.fused_add_rms_norm(x, residual, weight, EPS)
    assert_same_bits(residual, total)
    assert_close(x, reference(total, weight), float32_eps(hidden))
    assert_same_bits(x, ops.rms_norm(total, weight, EPS))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("hidden", [5, 100, 3588])
def test_strided_rows(hidden: int, dtype: torch.dtype) -> None:
    weight = torch.randn(hidden).to(dtype)

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape).to(dtype)

    for name, x in strided_views(make, 6, hidden).items():
        expected = ops.rms_norm(x.contiguous(), weight, EPS)
        assert_close(expected, reference(x, weight))
        print(name)  # shown when it fails
        assert_same_bits(ops.rms_norm(x, weight, EPS), expected)
        wide = torch.zeros(6, hidden + 3, dtype=dtype)
        ops.rms_norm(x, weight, EPS, out=wide[:, 1:-2])
        assert_same_bits(wide[:, 1:-2], expected)
        assert not wide[:, 0].any()
        assert not wide[:, -2:].any()


def test_more_leading_dimensions_that_do_not_merge() -> None:
    x = torch.randn(4, 5, 6, 10)[::2, 1:4, ::3, :7]
    weight = torch.randn(7)
    assert_close(ops.rms_norm(x, weight, EPS), reference(x, weight))
    residual = torch.randn(5, 6, 4, 7).permute(2, 0, 1, 3)[::2, 1:4, ::3]
    total, x = row_sum(x, residual), x.clone()
    ops.fused_add_rms_norm(x, residual, weight, EPS)
    assert_same_bits(residual.contiguous(), total)
    assert_close(x, reference(total, weight))


def test_a_vector_is_one_row_and_no_columns_are_none() -> None:
    x, weight = torch.randn(33), torch.randn(33)
    assert_close(ops.rms_norm(x, weight, EPS), reference(x, weight))
    assert ops.rms_norm(torch.empty(3, 0), torch.empty(0), EPS).shape == (3, 0)


def test_in_place() -> None:
    x, weight = torch.randn(3, 100), torch.randn(100)
    expected = ops.rms_norm(x, weight, EPS)
    assert ops.rms_norm(x, weight, EPS, out=x) is x
    assert_same_bits(x, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_weight_with_16_bit_rows(dtype: torch.dtype) -> None:
    x, weight = torch.randn(3, 100).to(dtype), torch.randn(100)
    assert_close(ops.rms_norm(x, weight, EPS), reference(x, weight))


@pytest.mark.parametrize("eps", [0.0, 1e-6, 1.0])
def test_eps(eps: float) -> None:
    x, weight = torch.randn(2, 64) * 1e-2, torch.ones(64)
    assert_close(ops.rms_norm(x, weight, eps), reference(x, weight, eps))


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_extreme_magnitudes(scale: float) -> None:
    x, weight = torch.randn(2, 64) * scale, torch.ones(64)
    assert_close(ops.rms_norm(x, weight, 1e-38), reference(x, weight, 1e-38))


def test_nan_and_inf_stay_in_their_row() -> None:
    x, weight = torch.randn(3, 100), torch.randn(100)
    expected = ops.rms_norm(x, weight, EPS)
    x[0, 99], x[2, 3] = float("nan"), float("inf")
    out = ops.rms_norm(x, weight, EPS)
    assert out[0].isnan().all()
    assert out[2, 3].isnan()
    assert_same_bits(out[1], expected[1])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("hidden", [7, 100, 3588])
def test_a_row_does_not_depend_on_its_batch_place_or_threads(hidden: int, dtype: torch.dtype) -> None:
    x, weight = torch.randn(40, hidden).to(dtype), torch.randn(hidden).to(dtype)
    together = ops.rms_norm(x, weight, EPS)
    for row in range(0, 40, 3):
        assert_same_bits(ops.rms_norm(x[row : row + 1].clone(), weight, EPS), together[row : row + 1])
    before = ops.get_num_threads()
    try:
        for threads in (1, 2, 3):
            ops.set_num_threads(threads)
            assert_same_bits(ops.rms_norm(x, weight, EPS), together)
    finally:
        ops.set_num_threads(before)


def test_offsets_beyond_2_31_elements() -> None:
    far = 2**31 + 17  # elements between the two rows; only their pages are ever touched
    storage = torch.empty(far + 64, dtype=torch.float16)
    x = storage.as_strided((2, 64), (far, 1))
    x.copy_(torch.randn(2, 64))
    weight = torch.randn(64).half()
    assert_close(ops.rms_norm(x, weight, EPS), reference(x, weight))
    expected = ops.rms_norm(x.clone(), weight, EPS)
    ops.rms_norm(x, weight, EPS, out=x)
    assert_same_bits(x.contiguous(), expected)


X, W = torch.ones(4, 8), torch.ones(8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.rms_norm(X, torch.ones(7), EPS), r"rms_norm: weight: expected shape \[H=8\], got \[7\]"),
        (lambda: ops.rms_norm(X, torch.ones(1, 8), EPS), r"weight: expected shape \[H=8\], got \[1, 8\]"),
        (lambda: ops.rms_norm(X, torch.ones(16)[::2], EPS), "weight: expected a contiguous tensor"),
        (lambda: ops.rms_norm(X, W.half(), EPS), "weight: expected dtype float32 as x, got float16"),
        (lambda: ops.rms_norm(X.double(), W, EPS), "x: expected dtype float32 or .* got float64"),
        (lambda: ops.rms_norm(X.int(), W, EPS), "x: expected dtype float32 or .* got int32"),
        (lambda: ops.rms_norm(torch.ones(8, 4).t(), W, EPS), "x: expected a contiguous last dimension"),
        (lambda: ops.rms_norm(torch.tensor(1.0), W, EPS), "x: expected at least 1 dimension"),
        (lambda: ops.rms_norm(X, W, -1.0), "eps: expected a number >= 0, got -1"),
        (lambda: ops.rms_norm(X, W, float("nan")), "eps: expected a number >= 0, got nan"),
        (
            lambda: ops.rms_norm(X, W, EPS, out=torch.ones(3, 8)),
            r"out: expected shape \[4, 8\] as x, got \[3, 8\]",
        ),
        (lambda: ops.rms_norm(X, W, EPS, out=X.half()), "out: expected dtype float32 as x, got float16"),
        (
            lambda: ops.rms_norm(X, W, EPS, out=torch.ones(1, 8).expand(4, 8)),
            "out: expected memory of its own",
        ),
        (lambda: ops.rms_norm(X, W, EPS, out=torch.ones(8, 4).t()), "out: expected a contiguous last dim"),
        (lambda: ops.rms_norm(X[:2], W, EPS, out=X[1:3]), "out: expected the same view as x or memory apart"),
        (lambda: ops.rms_norm(X[:, :4], W[:4], EPS, out=X[:, 2:6]), "out: expected the same view as x"),
        (lambda: ops.rms_norm(X[0], X[1], EPS, out=X[1]), "out: expected memory apart from that of weight"),
        (
            lambda: ops.fused_add_rms_norm(X, torch.ones(3, 8), W, EPS),
            r"residual: expected shape \[4, 8\] as x",
        ),
        (lambda: ops.fused_add_rms_norm(X, X.half(), W, EPS), "residual: expected dtype float32 as x"),
        (lambda: ops.fused_add_rms_norm(X, X, W, EPS), "x: expected memory apart from that of residual"),
        (lambda: ops.fused_add_rms_norm(X, X.clone(), torch.ones(9), EPS), r"weight: expected shape \[H=8\]"),
        (lambda: ops.fused_add_rms_norm(W.expand(4, 8), X.clone(), W, EPS), "x: expected memory of its own"),
        (
            lambda: ops.fused_add_rms_norm(X.clone(), W.expand(4, 8), W, EPS),
            "residual: expected memory of its",
        ),
    ],
)
def test_wrong_arguments(call: object, message: str) -> None:
    before = X.clone()
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
    assert torch.equal(X, before)


def test_column_slices_of_one_matrix_may_be_input_and_output() -> None:
    qkv, weight = torch.randn(5, 48), torch.randn(16)
    expected = ops.rms_norm(qkv[:, :16].clone(), weight, EPS)
    ops.rms_norm(qkv[:, :16], weight, EPS, out=qkv[:, 32:])
    assert_same_bits(qkv[:, 32:].contiguous(), expected)
