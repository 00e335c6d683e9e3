"""moe_align_block_size: the CUDA source against the CPU backend, which is compared with a simple model
(tests/ops/test_moe_align.py)."""

from __future__ import annotations

import ctypes
import mmap
import os
import random

import pytest
import torch
from harness import Device, simt_module
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


@pytest.mark.gpu
@pytest.mark.parametrize("padded", [2**31 - 1, 2**31 - 40])
def test_padding_up_to_an_ints_last(padded: int) -> None:
    """8 GiB of places, of which one has a pair: its warp's last steps are beyond an int."""
    topk_ids = torch.zeros(1, 1, dtype=torch.int32, device="cuda")
    places, experts, count = ops.moe_align_block_size(topk_ids, padded, 1)
    assert places.shape == (padded,)
    assert places[0] == 0
    assert all(bool((piece == 1).all()) for piece in places[1:].split(2**28))
    assert experts.tolist() == [0]
    assert count.tolist() == [padded]


def folded_memory(nbytes: int, page: int = 2 << 20) -> int:
    """The address of so many bytes, the same few again and again; nothing in front may be touched."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    reserved = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    before = 2**34
    start: int = libc.mmap(None, before + nbytes + page, 0, reserved, -1, 0) + before
    file, fixed = os.memfd_create("folded"), 0x10
    os.ftruncate(file, page)
    for at in range(start, start + nbytes, page):
        flags = mmap.MAP_SHARED | fixed
        assert libc.mmap(at, page, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0) == at
    os.close(file)
    return start


def test_padding_up_to_an_ints_last_writes_nothing_else() -> None:
    """As before, under the executor (ten seconds): a step that wraps would write in front of the places."""
    padded, module = 2**31 - 1, simt_module("inferx_simt_fast")
    memory = (ctypes.c_int32 * padded).from_address(folded_memory(4 * padded))
    places = torch.frombuffer(memory, dtype=torch.int32)
    topk_ids, experts, count = (torch.full(shape, 0, dtype=torch.int32) for shape in ((1, 1), (1,), (1,)))
    module.configure({"order": 0, "seed": 1, "preempt": 0, "num_sms": 1})
    module.moe_align_block_size(places, experts, count, topk_ids, 1, padded)
    assert places[-3:].tolist() == [1, 1, 1]
    assert count.tolist() == [padded]


@pytest.mark.parametrize("block_size", [2**30, 2**31 - 1])
def test_places_beyond_an_int_are_refused(device: Device, block_size: int) -> None:
    topk_ids, few = device.put(ids_of(3, 2, 0, 4)), device.put(torch.zeros(3, 1, dtype=torch.int32))
    most = 6 + 4 * (block_size - 1)
    with (
        device,
        pytest.raises(ValueError, match=rf"topk_ids: expected pairs that pad .* 2\*\*31, got {most}"),
    ):
        ops.moe_align_block_size(topk_ids, block_size, 4)
    message = rf"moe_align_block_size: topk_ids: expected pairs that pad to less than 2\^31, got {most}"
    with device, pytest.raises(ValueError, match=message):
        torch.ops.inferx.moe_align_block_size(few[0], few[1], few[2], topk_ids, 4, block_size)


def test_wrong_arguments(device: Device) -> None:
    with device, pytest.raises(ValueError, match="num_experts: expected 1 to 512, got 513"):
        ops.moe_align_block_size(device.put(ids_of(2, 2, 0, 4)), 4, 513)
