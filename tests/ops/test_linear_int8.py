"""linear with int8 activations against float64 on the rounded inputs, and one result per row whatever
surrounds it."""

from __future__ import annotations

import math

import pytest
import torch
from op_checks import assert_same_bits, check_on_instruction_set, strided_views
from packed_weights import QUANTISED, SCALES, block_size, dequantised, random_source, row_bytes
from torch import Tensor

from inferx import ops
from inferx.ops import PackedWeight

ROWS = [1, 2, 3, 5, 7, 8, 9, 11, 12, 13, 25, 40, 130]  # around the panels' sizes, and beyond a block of them
GROUP = 32


def make(dtype: str, n: int, k: int) -> tuple[PackedWeight, Tensor]:
    data = random_source(dtype, n, k)
    return ops.pack_weight(data, dtype, (n, k)), dequantised(data, dtype)


def rounded(x: Tensor) -> Tensor:
    """What the kernels compute with, in float64: multiples of a group's largest magnitude / 127."""
    groups = x.unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(-1, keepdim=True)
    largest = torch.where(largest < 1e-30, 0, largest)
    # 127 / largest would be 127 times a rounded reciprocal.
    inverse = torch.full_like(largest, 127.0).div(largest)
    codes = (groups * torch.where(largest == 0, 0, inverse)).round()
    return (codes.double() * (largest / 127).double()).flatten(-2)


def assert_int8(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Sums of products are exact; what is left are the roundings of a term's factors and of the sum of a
    few terms a group."""
    x64, w64 = rounded(x), weight.double()
    expected = x64 @ w64.T
    # Codes and minima are multiplied apart, so their magnitudes count apart; four times covers every format.
    size = 4 * (x64.abs() @ w64.abs().T) + 4 * x64.abs().sum(-1, keepdim=True) * w64.abs().amax(-1)
    if bias is not None:
        expected, size = expected + bias.double(), size + bias.double().abs()
    error = (y.double() - expected).abs()
    assert y.shape == expected.shape
    assert bool((error <= 8 * 2.0**-24 * size).all()), (error / size).max().item() * 2**24


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("blocks", [1, 3, 5])
@pytest.mark.parametrize("n", [1, 32, 45, 100])
def test_equals_float64_on_rounded_inputs(dtype: str, n: int, blocks: int) -> None:
    torch.manual_seed(0)
    k = blocks * block_size(dtype)
    packed, weight = make(dtype, n, k)
    for rows in ROWS:
        x, bias = torch.randn(rows, k), torch.randn(n)
        assert_int8(ops.linear(x, packed, int8=True), x, weight)
        assert_int8(ops.linear(x, packed, bias, int8=True), x, weight, bias)


@pytest.mark.parametrize("dtype", QUANTISED)
def test_largest_codes_do_not_overflow(dtype: str) -> None:
    """All bits set or none, and inputs all at the largest magnitude: sums at the ends of their range."""
    n, k = 40, 2 * block_size(dtype)
    for byte in (0, 255, 0x80, 0x7F):
        data = random_source(dtype, n, k)
        scales = random_source(dtype, n, k).clone()
        data[:] = byte
        # Scales of a usual size: those of random data, where the format keeps them.
        size = row_bytes(dtype, block_size(dtype))
        for block in range(0, data.shape[1], size):
            if dtype == "MXFP4":
                data[:, block] = scales[:, block]
            for offset in SCALES.get(dtype, ()):
                data[:, block + offset : block + offset + 2] = scales[:, block + offset : block + offset + 2]
        packed, weight = ops.pack_weight(data, dtype, (n, k)), dequantised(data, dtype)
        for signs in (torch.ones(k), -torch.ones(k), torch.tensor([1.0, -1.0]).repeat(k // 2)):
            x = signs.repeat(13, 1) * torch.linspace(0.5, 3.0, 13)[:, None]
            assert_int8(ops.linear(x, packed, int8=True), x, weight)


@pytest.mark.parametrize("dtype", QUANTISED)
def test_a_row_does_not_depend_on_the_others_or_the_threads(dtype: str) -> None:
    torch.manual_seed(0)
    k = 3 * block_size(dtype)
    packed, _ = make(dtype, 70, k)
    x = torch.randn(140, k)
    before = ops.get_num_threads()
    try:
        ops.set_num_threads(1)
        alone = torch.cat([ops.linear(row, packed, int8=True) for row in x.split(1)])
        for threads in (1, 2, 3):
            ops.set_num_threads(threads)
            for rows in ROWS:
                assert_same_bits(ops.linear(x[:rows], packed, int8=True), alone[:rows])
                assert_same_bits(ops.linear(x[-rows:], packed, int8=True), alone[-rows:])
    finally:
        ops.set_num_threads(before)


def test_strided_inputs_and_outputs() -> None:
    torch.manual_seed(0)
    packed, weight = make("Q4_1", 45, 96)
    for x in strided_views(torch.randn, 5, 96).values():
        assert_int8(ops.linear(x, packed, int8=True), x, weight)
    wide = torch.full((5, 60), 7.0)
    x = torch.randn(5, 96)
    ops.linear(x, packed, out=wide[:, 10:55], int8=True)
    assert_int8(wide[:, 10:55], x, weight)
    assert bool((wide[:, :10] == 7).all())
    assert bool((wide[:, 55:] == 7).all())


def test_no_rows() -> None:
    packed, _ = make("Q8_0", 45, 64)
    assert ops.linear(torch.empty(0, 64), packed, int8=True).shape == (0, 45)
    assert ops.linear(torch.empty(2, 0, 64), packed, int8=True).shape == (2, 0, 45)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q8_0", "Q6_K"])
def test_what_is_not_finite_stays_so(value: float, dtype: str) -> None:
    torch.manual_seed(0)
    k = 2 * block_size(dtype)
    packed, weight = make(dtype, 40, k)
    x = torch.randn(14, k)
    clean = x.clone()
    x[3, k // 2 + 1] = value
    y = ops.linear(x, packed, int8=True)
    assert not bool(y[3].isfinite().any())
    keep = [i for i in range(14) if i != 3]
    assert_int8(y[keep], clean[keep], weight)


def test_zeros_and_tiny_values() -> None:
    packed, _ = make("Q4_1", 40, 64)
    x = torch.zeros(3, 64)
    x[1] = 1e-38
    x[2] = 1e-45
    assert bool((ops.linear(x, packed, int8=True) == 0).all())


def test_wrong_arguments() -> None:
    packed = ops.pack_weight(torch.randn(4, 32), "F32", (4, 32))
    with pytest.raises(ValueError, match="linear: int8: expected a block-quantised weight, got F32"):
        ops.linear(torch.randn(1, 32), packed, int8=True)
    dense = ops.DenseWeight(torch.randn(4, 32))
    with pytest.raises(ValueError, match="linear: int8: expected False with a DenseWeight"):
        ops.linear(torch.randn(1, 32), dense, int8=True)


@pytest.mark.parametrize("isa", ["base", "v3", "v4", "v4vnni"])
def test_on_each_instruction_set(isa: str) -> None:
    check_on_instruction_set(isa, ["test_linear_int8.py"], "instruction_set", int8=True)
