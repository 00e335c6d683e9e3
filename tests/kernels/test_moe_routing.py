"""The routing kernel's CUDA source: bit for bit the CPU backend's, which is compared with float64 and with
transformers (tests/ops/test_routing.py)."""

from __future__ import annotations

import math

import pytest
import torch
from harness import Device
from op_checks import FLOATS, assert_same_bits, strided_views
from routing_reference import Options, assert_routed
from torch import Tensor

from inferx import ops

EXPERTS = [1, 2, 5, 8, 60, 64, 128, 160, 256, 257, 512]
KINDS = [
    Options(),
    Options(renormalize=True, scale=2.5),
    Options("sigmoid"),
    Options("sigmoid", renormalize=True, scale=0.3),
]
# experts, groups, groups to choose, experts to choose
GROUPED = [(256, 8, 4, 8), (64, 8, 3, 6), (60, 4, 2, 5), (12, 12, 6, 6), (512, 32, 7, 8), (9, 3, 1, 3)]


def check(
    device: Device, logits: Tensor, top_k: int, options: Options, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The device's weights and ids are the CPU's."""
    expected = options.call(logits, top_k, bias)
    with device:
        actual = options.call(device.put(logits), top_k, None if bias is None else device.put(bias))
    weights, ids = actual[0].cpu(), actual[1].cpu()
    assert_same_bits(ids, expected[1])
    assert_same_bits(weights, expected[0])
    return weights, ids


@pytest.mark.parametrize("experts", EXPERTS)
@pytest.mark.parametrize("top_k", [1, 8, 32])
def test_same_bits_as_the_cpu(device: Device, top_k: int, experts: int) -> None:
    top_k = min(top_k, experts)
    bias = torch.rand(experts) / experts
    for options, dtype in zip(KINDS, [*FLOATS, torch.float32], strict=True):
        logits = (torch.randn(5, experts) * 3).to(dtype)
        assert_routed(check(device, logits, top_k, options), logits, top_k, options)
        assert_routed(check(device, logits, top_k, options, bias), logits, top_k, options, bias)


@pytest.mark.parametrize(("experts", "groups", "top_groups", "top_k"), GROUPED)
def test_groups(device: Device, experts: int, groups: int, top_groups: int, top_k: int) -> None:
    bias = torch.rand(experts) - 0.5
    for scoring in ("softmax", "sigmoid"):
        options = Options(scoring, scoring == "sigmoid", 2.5, groups, top_groups)
        logits = torch.randn(5, experts).bfloat16()
        check(device, logits, top_k, options)
        check(device, logits, top_k, options, bias)
        tied = torch.randint(-1, 2, (5, experts)).float()
        check(device, tied, top_k, options)
        check(device, tied, top_k, options, torch.zeros(experts))


def test_ties(device: Device) -> None:
    for experts in (8, 64, 257):
        logits = torch.randint(-2, 3, (9, experts)).float()
        logits[0], logits[1], logits[1, ::2] = 1.5, 0.0, -0.0
        for options in KINDS:
            _, ids = check(device, logits, 8, options)
            assert ids[:2].tolist() == [list(range(8))] * 2
            check(device, logits, 8, options, torch.zeros(experts))


def test_nan_and_infinities(device: Device) -> None:
    inf, nan = math.inf, math.nan
    logits = torch.randn(9, 64)
    logits[0, 3], logits[1], logits[2, 63], logits[2, 0] = nan, nan, -nan, inf
    logits[3], logits[4, 10:], logits[5, [9, 40]] = -inf, -inf, inf
    logits[6] *= 1e38
    logits[7] *= 1e-40
    bias = torch.rand(64)
    bias[[5, 6, 7]] = torch.tensor([inf, -inf, nan])
    for options in [*KINDS, Options("sigmoid", renormalize=True, groups=8, top_groups=4)]:
        weights, ids = check(device, logits, 8, options)
        assert weights[:3].isnan().all()
        assert not weights[3:].isnan().any()
        assert all(len(set(row)) == 8 for row in ids.tolist())
        check(device, logits, 8, options, bias)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("experts", [60, 64, 256])
def test_strides_and_alignment_change_no_bit(device: Device, experts: int, dtype: torch.dtype) -> None:
    for name, logits in strided_views(lambda *s: torch.randn(*s).to(dtype), 3, experts).items():
        print(name)  # shown when it fails
        check(device, logits, 4, Options())


def test_a_token_does_not_depend_on_the_others(device: Device) -> None:
    logits = torch.randn(9, 160)
    options = Options("sigmoid", renormalize=True, groups=8, top_groups=3)
    with device:
        together = options.call(device.put(logits), 6)
        alone = options.call(device.put(logits[7:8]), 6)
    assert_same_bits(alone[0].cpu(), together[0][7:8].cpu())
    assert_same_bits(alone[1].cpu(), together[1][7:8].cpu())


def test_no_tokens(device: Device) -> None:
    with device:
        weights, ids = ops.topk_softmax(device.put(torch.empty(0, 8)), 2)
    assert weights.shape == ids.shape == (0, 2)


def test_wrong_arguments(device: Device) -> None:
    with device, pytest.raises(ValueError, match="top_k: expected 1 to 8, the number of experts, got 9"):
        ops.topk_softmax(device.put(torch.ones(2, 8)), 9)
