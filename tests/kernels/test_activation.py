"""Gated activations: the CUDA source against float64 and against the CPU backend."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from harness import Device
from op_checks import FLOATS, assert_close, assert_same_bits, strided_views
from torch import Tensor

from inferx import ops

Function = Callable[[Tensor], Tensor]
# The function in float64, and the float32 error of its exp or erfc in units of 2^-23, which grows with the
# argument's magnitude in the negative tail (see tests/ops/test_activation.py).
ACTIVATIONS = [
    pytest.param(ops.silu_and_mul, lambda z: z / (1 + torch.exp(-z)), lambda z: 5 + 0 * z, id="silu"),
    pytest.param(
        ops.gelu_and_mul,
        lambda z: 0.5 * z * torch.special.erfc(-z / math.sqrt(2)),
        lambda z: 9 + z**2,
        id="gelu",
    ),
    pytest.param(
        ops.gelu_tanh_and_mul,
        lambda z: z * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)),
        lambda z: 7 + 2 * z.abs() + z.abs() ** 3 / 4,
        id="gelu_tanh",
    ),
]


@pytest.mark.parametrize(("op", "function", "eps"), ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("rows", "d"), [(0, 8), (1, 1), (3, 3), (2, 16), (3, 1234), (1, 2056)])
def test_values(
    device: Device,
    rows: int,
    d: int,
    dtype: torch.dtype,
    op: Callable[..., Tensor],
    function: Function,
    eps: Function,
) -> None:
    x = (2 * torch.randn(rows, 2 * d)).to(dtype)
    with device:
        actual = op(device.put(x)).cpu()
    gate, up = x.double().chunk(2, dim=-1)
    assert_close(actual, function(gate) * up, eps(gate.clamp_max(0)))
    assert_close(actual, op(x).double(), 2 * eps(gate.clamp_max(0)))


def test_strides_and_alignment_change_no_bit(device: Device) -> None:
    for name, view in strided_views(torch.randn, 3, 2 * 136).items():
        with device:
            dense = ops.silu_and_mul(device.put(view.contiguous()))
            strided = ops.silu_and_mul(device.put(view))
            out = device.put(torch.zeros(3, 139))[:, 3:]
            ops.silu_and_mul(device.put(view), out=out)
        assert_same_bits(strided.cpu(), dense.cpu()), name
        assert_same_bits(out.cpu().contiguous(), dense.cpu())


def test_extremes(device: Device) -> None:
    z = torch.tensor([0.0, -0.0, 2.0**99, -(2.0**99), math.inf, 100.0, -100.0, -87.0])
    x = torch.cat([z, torch.ones(8)])[None]
    with device:
        out = ops.silu_and_mul(device.put(x))[0].cpu()
    assert out[:6].tolist() == [0.0, 0.0, 2.0**99, 0.0, math.inf, 100.0]
    assert abs(out[7].item() / (-87.0 * math.exp(-87.0)) - 1) < 1e-5
