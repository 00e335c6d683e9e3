"""copy_blocks: the CUDA source over every layout of a cache.  All memory under the caches is compared."""

from __future__ import annotations

import pytest
import torch
from cache_layouts import LAYOUTS, filled, make_caches, whole_memory
from harness import Device
from torch import Tensor

from inferx import ops

PAIRS = torch.tensor([[0, 5], [0, 6], [10, 1], [7, 2]])


def check(device: Device, keys: list[Tensor], values: list[Tensor], mapping: Tensor) -> None:
    caches = keys + values
    memories = {cache.untyped_storage().data_ptr(): whole_memory(cache) for cache in caches}
    expected = {pointer: memory.clone() for pointer, memory in memories.items()}
    for cache in caches:
        memory = expected[cache.untyped_storage().data_ptr()].view(cache.dtype)
        copy = memory.as_strided(cache.shape, cache.stride(), cache.storage_offset())
        for source, destination in mapping.tolist():
            if 0 <= source < len(cache) and 0 <= destination < len(cache):
                copy[destination].copy_(copy[source])
    with device:
        ops.copy_blocks(keys, values, device.put(mapping))
    for pointer, memory in memories.items():
        assert torch.equal(memory.cpu(), expected[pointer].cpu())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(device: Device, layout: str, dtype: torch.dtype) -> None:
    key, value = make_caches(layout, dtype, str(device.torch_device))
    check(device, [key], [value], PAIRS)


def test_layers_of_different_layouts(device: Device) -> None:
    pairs = [
        make_caches(layout, torch.float16, str(device.torch_device)) for layout in (*LAYOUTS, *LAYOUTS[:2])
    ]
    check(device, [key for key, _ in pairs], [value for _, value in pairs], PAIRS)


def test_more_layers_than_one_launch_takes(device: Device) -> None:
    keys, values = (
        [filled(3, 2, 3, dtype=torch.float16, device=str(device.torch_device)) for _ in range(130)]
        for _ in range(2)
    )
    check(device, keys, values, torch.tensor([[2, 0]]))


def test_layers_of_one_cache(device: Device) -> None:
    """Of latent attention: [num_blocks, block_size, 1, R + P], and no values."""
    caches = [filled(9, 16, 1, 72, dtype=torch.bfloat16, device=str(device.torch_device)) for _ in range(3)]
    check(device, caches, [], torch.tensor([[0, 5], [0, 6], [7, 2]]))


def test_only_the_step_between_runs_is_not_aligned(device: Device) -> None:
    """Runs of 32 bytes, 34 apart, in blocks of 272 bytes."""
    where = str(device.torch_device)
    caches = [filled(5, 8, 17, dtype=torch.bfloat16, device=where)[..., :16] for _ in range(2)]
    check(device, caches[:1], caches[1:], torch.tensor([[4, 0], [2, 3]]))


@pytest.mark.parametrize("elements", [8191, 8192, 8200])
def test_blocks_of_several_parts(device: Device, elements: int) -> None:
    """A CTA moves 16 KB: 8,192 elements of two bytes, where they are aligned."""
    caches = [filled(5, elements, dtype=torch.bfloat16, device=str(device.torch_device)) for _ in range(2)]
    check(device, caches[:1], caches[1:], torch.tensor([[4, 0], [2, 3]]))
    heads = [
        filled(5, 3, elements // 3, dtype=torch.bfloat16, device=str(device.torch_device)) for _ in range(2)
    ]
    check(device, [heads[0][..., :-3]], [heads[1][..., 1:-2]], torch.tensor([[4, 0], [2, 3]]))


def test_pairs_out_of_range_are_skipped(device: Device) -> None:
    caches = [filled(4, 64, dtype=torch.float16, device=str(device.torch_device)) for _ in range(2)]
    pairs = torch.tensor([[0, 1], [0, 4], [-1, 2], [0, 2**40], [-(2**62), 3]])
    check(device, caches[:1], caches[1:], pairs)


def test_nothing_to_do(device: Device) -> None:
    key, value = make_caches("dense", torch.float32, str(device.torch_device))
    check(device, [key], [value], torch.empty(0, 2, dtype=torch.int64))
    check(device, [], [], PAIRS)


def test_blocks_beyond_2_31_elements(device: Device) -> None:
    """Case E01; only the pages of the blocks that are used exist."""
    far = 2**30 + 64
    storage = torch.empty(2 * far + 128, dtype=torch.float16, device=device.torch_device)
    key, value = (storage.as_strided((3, 24), (far, 1), at) for at in (0, 64))
    for cache in (key, value):
        cache.copy_(torch.randn(3, 24))
    before = key.clone(), value.clone()
    with device:
        ops.copy_blocks([key], [value], device.put(torch.tensor([[0, 2]])))
    for cache, rows in zip((key, value), before, strict=True):
        rows[2] = rows[0]
        assert torch.equal(cache, rows)


def test_wrong_arguments(device: Device) -> None:
    key, value = make_caches("dense", torch.float32, str(device.torch_device))
    before = key.clone()
    mapping = device.put(torch.tensor([[0, 1]]))
    cases = [
        (([key] * 2, [value], mapping), "value_caches: expected 2 tensors as key_caches, or none, got 1"),
        (([key], [value], mapping[0]), r"block_mapping: expected shape \[n, 2\], got \[2\]"),
        (([key[:1].expand_as(key)], [value], mapping), r"key_caches\[0\]: expected memory of its own"),
        (([key[:, ::2, ::2]], [value], mapping), r"key_caches\[0\]: expected blocks that are one run of mem"),
    ]
    with device:
        for arguments, message in cases:
            with pytest.raises(ValueError, match=f"^copy_blocks: {message}"):
                ops.copy_blocks(*arguments)
    assert torch.equal(key, before)
