"""moe_sum: the CUDA source against float64 and against the CPU backend."""

from __future__ import annotations

import pytest
import torch
from harness import Device
from op_checks import FLOATS, assert_close, assert_same_bits
from torch import Tensor

from inferx import ops


def run(device: Device, x: Tensor) -> Tensor:
    with device:
        return ops.moe_sum(device.put(x)).cpu()


# A CTA has 1,024 columns.
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(3, 1, 5), (2, 8, 64), (3, 6, 1032), (1, 2, 2050), (0, 2, 8), (2, 0, 3)])
def test_moe_sum(device: Device, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    x = torch.rand(shape).to(dtype) + 0.5
    actual = run(device, x)
    assert_close(actual, x.double().sum(1), 8.0)
    assert_same_bits(actual, ops.moe_sum(x))
    x = (torch.randn(shape) * 100).to(dtype)
    assert_same_bits(run(device, x), ops.moe_sum(x))


@pytest.mark.parametrize("columns", [slice(0, 40), slice(3, 47), slice(8, 48)])
def test_strides_and_alignment_change_no_bit(device: Device, columns: slice) -> None:
    x = torch.randn(6, 5, 56).bfloat16()[::2, 1:4, columns]
    expected = ops.moe_sum(x.contiguous())
    assert_same_bits(run(device, x), expected)
    with device:
        out = device.put(torch.zeros(3, 57).bfloat16())
        ops.moe_sum(device.put(x), out=out[:, 1 : 1 + x.shape[2]])
    assert_same_bits(out[:, 1 : 1 + x.shape[2]].cpu(), expected)
    assert not out[:, 0].any()


def test_a_token_does_not_depend_on_the_others(device: Device) -> None:
    x = torch.randn(9, 3, 72)
    assert_same_bits(run(device, x[5:6].clone()), run(device, x)[5:6])
