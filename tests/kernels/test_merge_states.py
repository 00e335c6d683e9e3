"""merge_attn_states: the CUDA source against float64 and against the CPU backend."""

from __future__ import annotations

import math

import pytest
import torch
from harness import Device
from op_checks import FLOATS, assert_close, assert_same_bits
from torch import Tensor

from inferx import ops


def exact(prefix: Tensor, prefix_lse: Tensor, suffix: Tensor, suffix_lse: Tensor) -> tuple[Tensor, Tensor]:
    lse = torch.logaddexp(prefix_lse.double(), suffix_lse.double())
    weights = [(side.double() - lse).exp().nan_to_num(0.0)[..., None] for side in (prefix_lse, suffix_lse)]
    return prefix.double() * weights[0] + suffix.double() * weights[1], lse


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("tokens", "heads", "head_dim"), [(0, 2, 8), (1, 1, 8), (3, 5, 72), (2, 3, 256), (3, 2, 264)]
)
def test_values(device: Device, dtype: torch.dtype, tokens: int, heads: int, head_dim: int) -> None:
    prefix, suffix = (torch.rand(tokens, heads, head_dim).add(0.5).to(dtype) for _ in range(2))
    prefix_lse, suffix_lse = (3 * torch.randn(tokens, heads) for _ in range(2))
    with device:
        arguments = [device.put(t) for t in (prefix, prefix_lse, suffix, suffix_lse)]
        out, lse = ops.merge_attn_states(*arguments, return_lse=True)
    expected, expected_lse = exact(prefix, prefix_lse, suffix, suffix_lse)
    assert_close(out.cpu(), expected, 16.0)
    assert (lse.cpu() - expected_lse).abs().le(2e-6).all()
    if dtype == torch.float32:
        assert_close(out.cpu(), ops.merge_attn_states(prefix, prefix_lse, suffix, suffix_lse).double(), 32.0)


def test_a_side_that_saw_nothing_is_not_read(device: Device) -> None:
    good, nothing = torch.randn(4, 1, 16), torch.full((4, 1, 16), math.nan)
    some, none = torch.tensor([[1.0], [2.0], [-1e5], [0.0]]), torch.full((4, 1), -math.inf)
    with device:
        for sides in ((good, some, nothing, none), (nothing, none, good, some)):
            out, lse = ops.merge_attn_states(*(device.put(t) for t in sides), return_lse=True)
            assert_same_bits(out.cpu(), good)
            assert_same_bits(lse.cpu(), some)
        empty, lse = ops.merge_attn_states(
            *(device.put(t) for t in (nothing, none, nothing, none)), return_lse=True
        )
    assert not empty.cpu().any()
    assert (lse.cpu() == -math.inf).all()


def test_in_place_and_strided(device: Device) -> None:
    buffer = torch.randn(3, 2, 2, 24)
    prefix, suffix = buffer[:, 0], buffer[:, 1]
    lses = torch.randn(2, 2, 3)
    prefix_lse, suffix_lse = lses[0].t(), lses[1].t()
    expected, _ = exact(prefix, prefix_lse, suffix, suffix_lse)
    with device:
        here = device.put(buffer)
        arguments = (here[:, 0], device.put(lses)[0].t(), here[:, 1], device.put(lses)[1].t())
        ops.merge_attn_states(*arguments, out=here[:, 0])
    assert_close(here[:, 0].cpu().contiguous(), expected, 64.0, floor=1e-2)
    assert_same_bits(here[:, 1].cpu().contiguous(), suffix.contiguous())
