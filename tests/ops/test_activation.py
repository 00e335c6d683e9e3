"""silu_and_mul, gelu_and_mul and gelu_tanh_and_mul against float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from op_checks import FLOATS, assert_close, assert_same_bits, strided_views
from torch import Tensor

from inferx import ops


def silu(z: Tensor) -> Tensor:
    return z / (1 + torch.exp(-z))


def gelu(z: Tensor) -> Tensor:
    return 0.5 * z * torch.special.erfc(-z / math.sqrt(2))  # no cancellation in the negative tail


def gelu_tanh(z: Tensor) -> Tensor:
    return z * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))


# The third is the float32 error in units of 2^-23: exp carries the rounding of its argument, which is z^2 / 2
# for gelu's tail and takes three roundings for the tanh form.  silu's argument is exact.
ACTIVATIONS = [
    pytest.param(ops.silu_and_mul, silu, lambda z: 4 + 0 * z, id="silu"),
    pytest.param(ops.gelu_and_mul, gelu, lambda z: 8 + z**2 / 2, id="gelu"),
    pytest.param(
        ops.gelu_tanh_and_mul, gelu_tanh, lambda z: 6 + 2 * z.abs() + z.abs() ** 3 / 4, id="gelu_tanh"
    ),
]
Op = Callable[..., Tensor]
Function = Callable[[Tensor], Tensor]


def reference(function: Function, x: Tensor) -> Tensor:
    gate, up = x.double().chunk(2, dim=-1)
    return function(gate) * up


def error(eps: Function, x: Tensor) -> Tensor:
    return 1 + eps(x.double().chunk(2, dim=-1)[0].clamp_max(0))


@pytest.mark.parametrize(("op", "function", "eps"), ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("d", [1, 3, 16, 1234, 1536, 3420])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_values(rows: int, d: int, dtype: torch.dtype, op: Op, function: Function, eps: Function) -> None:
    x = (2 * torch.randn(rows, 2 * d)).to(dtype)
    before = x.clone()
    out = op(x)
    assert out.shape == (rows, d)
    assert out.dtype == dtype
    assert_close(out, reference(function, x), error(eps, x))
    assert_same_bits(x, before)


@pytest.mark.parametrize(("op", "function", "eps"), ACTIVATIONS)
def test_many_short_rows(op: Op, function: Function, eps: Function) -> None:
    x = torch.randn(65537, 6)
    assert_close(op(x), reference(function, x), error(eps, x))


def curve(op: Op, z: Tensor) -> Tensor:
    return op(torch.stack([z, torch.ones_like(z)], dim=-1).reshape(-1, 2))[:, 0]


@pytest.mark.parametrize(
    ("op", "function", "eps", "lowest"),
    [
        pytest.param(*case.values, lowest, id=case.id)
        for case, lowest in zip(ACTIVATIONS, (-87.3, -12.7, -10), strict=True)
    ],
)
def test_the_whole_range(op: Op, function: Function, eps: Function, lowest: float) -> None:
    z = torch.linspace(lowest, 100, 200_001)
    assert_close(curve(op, z), function(z.double()), eps(z.double().clamp_max(0)), floor=1e-37)


@pytest.mark.parametrize(("op", "function", "eps"), ACTIVATIONS)
def test_special_values(op: Op, function: Function, eps: Function) -> None:
    z = torch.tensor([0.0, -0.0, 1e-40, -1e-40, 3e38, float("inf"), float("nan")])
    out = curve(op, z)
    assert_same_bits(out[:2], torch.tensor([0.0, -0.0]))
    torch.testing.assert_close(out[2:4], z[2:4] / 2, rtol=1e-4, atol=0)
    assert_same_bits(out[4:6], z[4:6])
    assert out[6].isnan()
    far = curve(op, torch.tensor([-89.0, -200.0, -1e10, -3e38]))
    assert (far.abs() < 1e-36).all()
    assert (far <= 0).all()


@pytest.mark.parametrize(("op", "function", "eps"), ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_an_element_does_not_depend_on_its_place_or_threads(
    dtype: torch.dtype, op: Op, function: Function, eps: Function
) -> None:
    d = 1234
    gate, up = (torch.randn(20, d).to(dtype) for _ in range(2))
    together = op(torch.cat([gate, up], dim=-1))
    order = torch.randperm(d)
    assert_same_bits(op(torch.cat([gate[:, order], up[:, order]], dim=-1)), together[:, order])
    for columns in (1, 5, 17):
        alone = op(torch.cat([gate[3:4, :columns], up[3:4, :columns]], dim=-1))
        assert_same_bits(alone, together[3:4, :columns])
    before = ops.get_num_threads()
    try:
        for threads in (1, 2, 3):
            ops.set_num_threads(threads)
            assert_same_bits(op(torch.cat([gate, up], dim=-1)), together)
    finally:
        ops.set_num_threads(before)


@pytest.mark.parametrize(("op", "function", "eps"), ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("d", [3, 160])
def test_strided_rows(d: int, dtype: torch.dtype, op: Op, function: Function, eps: Function) -> None:
    for name, x in strided_views(lambda *shape: torch.randn(*shape).to(dtype), 6, 2 * d).items():
        print(name)  # shown when it fails
        expected = op(x.contiguous())
        assert_close(expected, reference(function, x), error(eps, x))
        assert_same_bits(op(x), expected)
        wide = torch.zeros(6, d + 3, dtype=dtype)
        op(x, out=wide[:, 1:-2])
        assert_same_bits(wide[:, 1:-2], expected)
        assert not wide[:, 0].any()
        assert not wide[:, -2:].any()


def test_more_leading_dimensions() -> None:
    x = torch.randn(4, 5, 6, 20)[::2, 1:4, ::3, :14]
    assert_close(ops.silu_and_mul(x), reference(silu, x))
    assert ops.silu_and_mul(torch.ones(2)).shape == (1,)
    assert ops.silu_and_mul(torch.ones(3, 0)).shape == (3, 0)


def test_offsets_beyond_2_31_elements() -> None:
    far = 2**31 + 17  # elements between the two rows; only their pages are ever touched
    x = torch.empty(far + 64, dtype=torch.bfloat16).as_strided((2, 64), (far, 1))
    x.copy_(torch.randn(2, 64))
    assert_close(ops.silu_and_mul(x), reference(silu, x))


@pytest.mark.parametrize(("op", "name"), [(getattr(ops, n), n) for n in ("silu_and_mul", "gelu_and_mul")])
def test_wrong_arguments(op: Op, name: str) -> None:
    x = torch.ones(4, 8)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: op(torch.ones(4, 7)), r"x: expected an even last dimension .* got \[4, 7\]"),
        (lambda: op(torch.tensor(1.0)), "x: expected at least 1 dimension"),
        (lambda: op(x.double()), "x: expected dtype float32 or float16 or bfloat16, got float64"),
        (lambda: op(torch.ones(8, 4).t()), "x: expected a contiguous last dimension"),
        (lambda: op(x, out=torch.ones(4, 8)), r"out: expected x's shape \[4, 8\] with half .* got \[4, 8\]"),
        (lambda: op(x, out=torch.ones(3, 4)), r"out: expected x's shape .* got \[3, 4\]"),
        (lambda: op(x, out=torch.ones(4)), r"out: expected x's shape .* got \[4\]"),
        (lambda: op(x, out=torch.ones(4, 4).half()), "out: expected dtype float32 as x, got float16"),
        (lambda: op(x, out=x[:, :4]), "out: expected memory apart from that of x"),
        (lambda: op(x, out=torch.ones(4, 1).expand(4, 4)), "out: expected a contiguous last dimension"),
        (lambda: op(x, out=torch.ones(1, 4).expand(4, 4)), "out: expected memory of its own"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=f"^{name}: {message}"):
            call()
    assert torch.equal(x, torch.ones(4, 8))
