"""concat_and_cache_mla: the CUDA source against torch's indexing.  All memory under the cache is compared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import Device
from op_checks import FLOATS
from torch import Tensor

from inferx import ops

BLOCKS = 6


def check(
    device: Device,
    kv_c: Tensor,
    k_pe: Tensor,
    slots: Tensor,
    *,
    block: int = 16,
    padding: int = 0,
    input_offset: int = 0,
) -> None:
    """Writes rows of one fused tensor, ``input_offset`` elements into it, into a cache full of ones."""
    tokens, rank = kv_c.shape
    width = rank + k_pe.shape[1]
    storage = torch.ones(BLOCKS, block, width + padding, dtype=kv_c.dtype)
    expected = storage.clone()
    usable = (slots >= 0) & (slots < BLOCKS * block)
    kept = slots[usable]
    expected[..., padding:][kept // block, kept % block] = torch.cat([kv_c, k_pe], dim=1)[usable]

    fused = torch.cat([kv_c.new_zeros(input_offset), torch.cat([kv_c, k_pe], dim=1).flatten()])
    on_device = device.put(storage)
    with device:
        rows = device.put(fused)[input_offset:].view(tokens, width)
        ops.concat_and_cache_mla(rows[:, :rank], rows[:, rank:], on_device[..., padding:], device.put(slots))
    assert torch.equal(on_device.cpu(), expected)


def random_slots(tokens: int, block: int = 16) -> Tensor:
    slots = torch.randperm(BLOCKS * block)[:tokens]
    slots[1::5] = -1
    if tokens > 8:
        slots[2], slots[3], slots[4] = BLOCKS * block, -(2**40), 2**40
    return slots


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_types_and_sizes(device: Device, dtype: torch.dtype) -> None:
    for tokens, rank, rope in ((1, 32, 8), (37, 64, 16), (6, 13, 3), (5, 12, 4), (3, 8, 0), (3, 0, 8)):
        kv_c, k_pe = torch.randn(tokens, rank).to(dtype), torch.randn(tokens, rope).to(dtype)
        check(device, kv_c, k_pe, random_slots(tokens))


@pytest.mark.parametrize("block", [1, 8, 24, 64])
def test_rows_of_real_models_and_block_sizes(device: Device, block: int) -> None:
    kv_c, k_pe = torch.randn(5, 512).bfloat16(), torch.randn(5, 64).bfloat16()
    check(device, kv_c, k_pe, random_slots(5, block), block=block)


def test_rows_wider_than_one_cta(device: Device) -> None:
    check(device, torch.randn(3, 1100), torch.randn(3, 60), random_slots(3))


@pytest.mark.parametrize(("padding", "input_offset"), [(0, 1), (0, 4), (8, 0), (1, 0), (4, 0)])
def test_what_does_not_fit_vectors(device: Device, padding: int, input_offset: int) -> None:
    kv_c, k_pe = torch.randn(7, 32).half(), torch.randn(7, 16).half()
    check(device, kv_c, k_pe, random_slots(7), padding=padding, input_offset=input_offset)


def test_blocks_beyond_2_31_elements(device: Device) -> None:
    """Case E01; only the pages that are written exist."""
    far = 2**30 + 64
    storage = torch.empty(2 * far + 128, dtype=torch.bfloat16, device=device.torch_device)
    cache = storage.as_strided((3, 2, 24), (far, 24, 1)).zero_()
    kv_c, k_pe = torch.randn(2, 16).bfloat16(), torch.randn(2, 8).bfloat16()
    with device:
        ops.concat_and_cache_mla(device.put(kv_c), device.put(k_pe), cache, device.put(torch.tensor([5, 0])))
    expected = torch.zeros(3, 2, 24, dtype=torch.bfloat16)
    expected[2, 1], expected[0, 0] = torch.cat([kv_c, k_pe], dim=1)
    assert torch.equal(cache.cpu(), expected)


def test_nothing_to_do(device: Device) -> None:
    cache = torch.ones(2, 16, 24)
    with device:
        put = device.put(cache)
        none = device.put(torch.zeros(0, dtype=torch.int64))
        ops.concat_and_cache_mla(device.put(torch.zeros(0, 16)), device.put(torch.zeros(0, 8)), put, none)
        no_blocks = device.put(torch.zeros(0, 16, 24))
        slot = device.put(torch.tensor([0]))
        ops.concat_and_cache_mla(
            device.put(torch.zeros(1, 16)), device.put(torch.zeros(1, 8)), no_blocks, slot
        )
    assert torch.equal(put.cpu(), cache)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("slot_mapping: expected dtype int64, got int32",
         {"slot_mapping": torch.zeros(3, dtype=torch.int32)}),
        (r"k_pe: expected shape \[T=3, P\], got \[2, 8\]", {"k_pe": torch.ones(2, 8)}),
        (r"kv_cache: expected a last dimension of R \+ P = 32 \+ 8, got \[4, 16, 48\]",
         {"kv_cache": torch.zeros(4, 16, 48)}),
        ("kv_cache: expected dtype float32 as kv_c, got bfloat16",
         {"kv_cache": torch.zeros(4, 16, 40).bfloat16()}),
        ("kv_cache: expected dtype float32 or float16 or bfloat16, got float8_e4m3fn",
         {"kv_cache": torch.zeros(4, 16, 40).to(torch.float8_e4m3fn)}),
    ],
)  # fmt: skip
def test_wrong_arguments(device: Device, message: str, changes: dict[str, Any]) -> None:
    given = {
        "kv_c": torch.ones(3, 32),
        "k_pe": torch.ones(3, 8),
        "kv_cache": torch.zeros(4, 16, 40),
        "slot_mapping": torch.tensor([0, 1, 2]),
        **changes,
    }
    with device:
        call = {name: device.put(tensor) for name, tensor in given.items()}
        with pytest.raises(ValueError, match="^concat_and_cache_mla: " + message):
            ops.concat_and_cache_mla(**call)
    assert not call["kv_cache"].float().any()
