"""rotary_embedding: the CUDA source against float64 and, bit for bit, against the CPU backend."""

from __future__ import annotations

import pytest
import torch
from harness import Device
from op_checks import FLOATS, assert_close, assert_same_bits
from torch import Tensor

from inferx import ops


def table(rows: int, rot_dim: int) -> Tensor:
    angles = torch.arange(rows).double()[:, None] / 10 ** torch.linspace(0, 3, rot_dim // 2)
    return torch.cat([angles.cos(), angles.sin()], dim=1).float()


def exact(x: Tensor, positions: Tensor, cos_sin: Tensor, is_neox: bool) -> Tensor:
    """x [T, heads, head_size] turned, in float64."""
    half = cos_sin.shape[1] // 2
    cos, sin = cos_sin.double()[positions][:, None].split(half, dim=-1)
    out = x.double().clone()
    first, second = (
        (slice(0, half), slice(half, 2 * half)) if is_neox else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    a, b = x.double()[..., first], x.double()[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize(
    ("tokens", "head_size", "rot_dim"), [(0, 8, 8), (1, 6, 2), (3, 64, 64), (5, 80, 32), (2, 128, 112)]
)
def test_values(
    device: Device, tokens: int, head_size: int, rot_dim: int, is_neox: bool, dtype: torch.dtype
) -> None:
    cos_sin = table(50, rot_dim)
    positions = torch.randint(50, (tokens,))
    query, key = torch.randn(tokens, 3, head_size).to(dtype), torch.randn(tokens, head_size).to(dtype)
    with device:
        q, k = device.put(query), device.put(key)
        ops.rotary_embedding(device.put(positions), q, k, head_size, device.put(cos_sin), is_neox)
    assert_close(q.cpu(), exact(query, positions, cos_sin, is_neox), 8.0, floor=1.0)
    assert_close(k.cpu()[:, None], exact(key[:, None], positions, cos_sin, is_neox), 8.0, floor=1.0)
    ops.rotary_embedding(positions, query, key, head_size, cos_sin, is_neox)
    assert_same_bits(q.cpu(), query)
    assert_same_bits(k.cpu(), key)


@pytest.mark.parametrize("is_neox", [True, False])
def test_slices_of_a_fused_projection(device: Device, is_neox: bool) -> None:
    qkv, positions, cos_sin = torch.randn(4, 7 * 24 + 1), torch.tensor([0, 49, 7, 3]), table(50, 16)
    expected = qkv.clone()
    with device:
        here = device.put(qkv)
        query, key = here[:, 1:97].unflatten(1, (4, 24)), here[:, 97:145]
        ops.rotary_embedding(device.put(positions), query, key, 24, device.put(cos_sin), is_neox)
    ops.rotary_embedding(
        positions, expected[:, 1:97].unflatten(1, (4, 24)), expected[:, 97:145], 24, cos_sin, is_neox
    )
    assert_same_bits(here.cpu(), expected)


def test_a_position_beyond_the_table_leaves_the_token(device: Device) -> None:
    query, positions = torch.randn(4, 2, 16), torch.tensor([3, -1, 50, 2**40])
    with device:
        q = device.put(query)
        ops.rotary_embedding(device.put(positions), q, None, 16, device.put(table(50, 16)))
    assert_same_bits(q[1:].cpu(), query[1:])
    assert not torch.equal(q[0].cpu(), query[0])
