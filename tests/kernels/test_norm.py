"""rms_norm's CUDA source against float64 and against the CPU backend."""

from __future__ import annotations

import pytest
import torch
from harness import Device
from op_checks import FLOATS, assert_close

from inferx import ops


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("rows", "hidden"), [(0, 8), (1, 1), (3, 7), (5, 129), (2, 3584)])
def test_rms_norm(device: Device, dtype: torch.dtype, rows: int, hidden: int) -> None:
    x, weight = torch.randn(rows, hidden).to(dtype), torch.randn(hidden)
    with device:
        actual = ops.rms_norm(device.put(x), device.put(weight), 1e-5).cpu()
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(actual, exact)
    on_cpu = ops.rms_norm(x, weight, 1e-5)
    assert_close(actual, on_cpu.double(), 8.0)
