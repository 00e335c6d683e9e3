"""rms_norm and fused_add_rms_norm: the CUDA source against float64 and against the CPU backend."""

from __future__ import annotations

import pytest
import torch
from harness import Device
from op_checks import FLOATS, assert_close, assert_same_bits, strided_views
from torch import Tensor

from inferx import ops

EPS = 1e-5
# Warp rows end at 512, a CTA's single trip at 2,048; 3,588 is even but no multiple of 8 (case E09).
SIZES = [(0, 8), (1, 1), (3, 7), (5, 129), (9, 512), (2, 520), (1, 2056), (2, 3584), (2, 3588)]


def exact(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("rows", "hidden"), SIZES)
def test_rms_norm(device: Device, dtype: torch.dtype, rows: int, hidden: int) -> None:
    x = torch.randn(rows, hidden).to(dtype)
    for weight in (torch.randn(hidden), torch.randn(hidden).to(dtype)):
        with device:
            actual = ops.rms_norm(device.put(x), device.put(weight), EPS).cpu()
        assert_close(actual, exact(x, weight))
        assert_close(actual, ops.rms_norm(x, weight, EPS).double(), 8.0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("rows", "hidden"), SIZES)
def test_fused_add_rms_norm(device: Device, dtype: torch.dtype, rows: int, hidden: int) -> None:
    x, residual, weight = (
        torch.randn(rows, hidden).to(dtype),
        torch.randn(rows, hidden).to(dtype),
        torch.randn(hidden),
    )
    with device:
        out, stream = device.put(x), device.put(residual)
        ops.fused_add_rms_norm(out, stream, device.put(weight), EPS)
    total = (x.float() + residual.float()).to(dtype)
    assert_same_bits(stream.cpu(), total)
    assert_close(out.cpu(), exact(total, weight))


@pytest.mark.parametrize("hidden", [64, 520])
def test_strides_and_alignment_change_no_bit(device: Device, hidden: int) -> None:
    weight = torch.randn(hidden)
    for view in strided_views(torch.randn, 3, hidden).values():
        with device:
            dense = ops.rms_norm(device.put(view.contiguous()), device.put(weight), EPS)
            strided = ops.rms_norm(device.put(view), device.put(weight), EPS)
        assert_same_bits(strided.cpu(), dense.cpu())


def test_heads_of_a_fused_projection_in_place(device: Device) -> None:
    qkv, weight = torch.randn(5, 3 * 4 * 24).bfloat16(), torch.randn(24)
    with device:
        buffer = device.put(qkv)
        query = buffer[:, 96:192].unflatten(1, (4, 24))
        ops.rms_norm(query, device.put(weight), EPS, out=query)
    assert_close(
        buffer[:, 96:192].unflatten(1, (4, 24)).cpu(), exact(qkv[:, 96:192].unflatten(1, (4, 24)), weight)
    )
    assert_same_bits(buffer[:, :96].cpu(), qkv[:, :96])
    assert_same_bits(buffer[:, 192:].cpu(), qkv[:, 192:])


def test_a_row_does_not_depend_on_the_others(device: Device) -> None:
    x, weight = torch.randn(17, 640), torch.randn(640)
    with device:
        together = ops.rms_norm(device.put(x), device.put(weight), EPS).cpu()
        alone = ops.rms_norm(device.put(x[11:12]), device.put(weight), EPS).cpu()
    assert_same_bits(together[11:12], alone)


def test_many_rows(device: Device) -> None:
    """More rows than a grid's y dimension holds (case E09)."""
    if device.name == "simt-checked":
        pytest.skip("the fast build is enough for this one")
    x, weight = torch.randn(65537, 8), torch.randn(8)
    with device:
        actual = ops.rms_norm(device.put(x), device.put(weight), EPS).cpu()
    assert_close(actual, exact(x, weight))
