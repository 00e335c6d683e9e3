"""moe_align_block_size: the CUDA source against the CPU backend, which is compared with a simple model
(tests/ops/test_moe_align.py)."""

from __future__ import annotations

import random

import pytest
import torch
from harness import Device
from op_checks import assert_same_bits
from torch import Tensor

from inferx import ops


def check(device: Device, topk_ids: Tensor, block_size: int, num_experts: int) -> None:
    expected = ops.moe_align_block_size(topk_ids, block_size, num_experts)
    with device:
        actual = ops.moe_align_block_size(device.put(topk_ids), block_size, num_experts)
    for got, wanted in zip(actual, expected, strict=True):
        assert_same_bits(got.cpu(), wanted)


def ids_of(tokens: int, top_k: int, low: int, high: int) -> Tensor:
    return torch.randint(low, high, (tokens, top_k), dtype=torch.int32)


@pytest.mark.parametrize("num_experts", [1, 5, 8, 33, 64, 257, 512])
@pytest.mark.parametrize(("tokens", "top_k"), [(0, 2), (1, 1), (7, 3), (40, 8), (129, 2)])
def test_random_ids(device: Device, tokens: int, top_k: int, num_experts: int) -> None:
    block_size = random.choice([1, 3, 16, 64])
    print(f"block_size {block_size}")  # shown when it fails
    check(device, ids_of(tokens, top_k, 0, num_experts), block_size, num_experts)


@pytest.mark.parametrize("low", [-1, -(2**31)])
def test_unknown_experts_are_left_out(device: Device, low: int) -> None:
    topk_ids = ids_of(50, 4, -1, 9)
    topk_ids[::7] = low
    topk_ids[1::7] = 2**31 - 1
    check(device, topk_ids, 16, 8)
    check(device, torch.full((40, 2), low, dtype=torch.int32), 16, 8)


def test_all_pairs_to_one_expert(device: Device) -> None:
    for expert in (0, 63):
        check(device, torch.full((70, 2), expert, dtype=torch.int32), 8, 64)


@pytest.mark.parametrize(("tokens", "num_experts"), [(1100, 60), (540, 512)])
def test_several_trips_of_every_warp(device: Device, tokens: int, num_experts: int) -> None:
    """More than 32 warps of 128 pairs; with 512 experts more than 48 KiB of counters."""
    if device.name == "simt-checked":
        tokens //= 8
    check(device, ids_of(tokens, 8, 0, num_experts), 16, num_experts)


def test_wrong_arguments(device: Device) -> None:
    with device, pytest.raises(ValueError, match="num_experts: expected 1 to 512, got 513"):
        ops.moe_align_block_size(device.put(ids_of(2, 2, 0, 4)), 4, 513)
