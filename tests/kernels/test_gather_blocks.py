"""gather_blocks and scatter_blocks: against torch's indexing, over every layout."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from cache_layouts import BLOCKS, LAYOUTS, filled, make_caches, whole_memory
from harness import Device
from torch import Tensor

from inferx import ops

IDS = torch.tensor([3, 0, 10, -1, 7, 3])


def bytes_of(x: Tensor) -> Tensor:
    return x.cpu().contiguous().flatten().view(torch.uint8)


def gathered(caches: list[Tensor], ids: Tensor) -> Tensor:
    """By indexing; zeros where there is no block."""
    out = torch.zeros(len(caches), len(ids), *caches[0].shape[1:], dtype=caches[0].dtype)
    for c, cache in enumerate(caches):
        for i, block in enumerate(ids.tolist()):
            if 0 <= block < len(cache):
                out[c, i] = cache[block].cpu()
    return out


def check_gather(device: Device, caches: list[Tensor], ids: Tensor) -> Tensor:
    expected = gathered(caches, ids)
    with device:
        out = torch.full_like(expected, 3, device=device.torch_device)
        result = ops.gather_blocks(caches, device.put(ids), out=out)
        assert result is out
        allocated = ops.gather_blocks(caches, device.put(ids))
    assert torch.equal(bytes_of(out), bytes_of(expected))
    assert torch.equal(bytes_of(allocated), bytes_of(expected))
    return out


def check_scatter(device: Device, buffer: Tensor, caches: list[Tensor], ids: Tensor) -> None:
    """Compares all memory under the caches, so that nothing else may change."""
    memories = {cache.untyped_storage().data_ptr(): whole_memory(cache) for cache in caches}
    expected = {pointer: memory.clone() for pointer, memory in memories.items()}
    for c, cache in enumerate(caches):
        memory = expected[cache.untyped_storage().data_ptr()].view(cache.dtype)
        copy = memory.as_strided(cache.shape, cache.stride(), cache.storage_offset())
        for i, block in enumerate(ids.tolist()):
            if 0 <= block < len(cache):
                copy[block].copy_(buffer[c, i])
    with device:
        ops.scatter_blocks(buffer, caches, device.put(ids))
    for pointer, memory in memories.items():
        assert torch.equal(memory.cpu(), expected[pointer].cpu())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_round_trip(device: Device, layout: str, dtype: torch.dtype) -> None:
    where = str(device.torch_device)
    caches = [*make_caches(layout, dtype, where), *make_caches(layout, dtype, where)]
    buffer = check_gather(device, caches, IDS)
    ids = torch.tensor([1, 5, -1, 2, 0, 9])
    check_scatter(
        device, buffer, [*make_caches(layout, dtype, where), *make_caches(layout, dtype, where)], ids
    )
    if caches[0].dim() == 4 and caches[0].numel():  # the receiver lays its caches out differently
        others = [*make_caches("head-major pool", dtype, where), *make_caches("padded heads", dtype, where)]
        check_scatter(device, buffer, others, ids)
        for i, block in enumerate(ids.tolist()):
            if block >= 0 and IDS[i] >= 0:
                for cache, other in zip(caches, others, strict=True):
                    assert torch.equal(bytes_of(other[block]), bytes_of(cache[IDS[i]]))


def test_layer_major_view(device: Device) -> None:
    where = str(device.torch_device)
    keys, values = (
        [filled(4, 8, 2, 4, dtype=torch.float16, device=where) for _ in range(3)] for _ in range(2)
    )
    caches = [cache for pair in zip(keys, values, strict=True) for cache in pair]
    with device:
        out = ops.gather_blocks(caches, device.put(torch.tensor([2, 1]))).view(3, 2, 2, 8, 2, 4)
    for layer in range(3):
        assert torch.equal(out[layer, 0], keys[layer][[2, 1]])
        assert torch.equal(out[layer, 1], values[layer][[2, 1]])


def test_only_the_step_between_runs_is_not_aligned(device: Device) -> None:
    """Runs of 32 bytes, 34 apart, in blocks of 272 bytes."""
    where = str(device.torch_device)
    caches = [filled(5, 8, 17, dtype=torch.bfloat16, device=where)[..., :16] for _ in range(2)]
    buffer = check_gather(device, caches, torch.tensor([3, -1, 0]))
    check_scatter(device, buffer, caches, torch.tensor([1, 2, -1]))


@pytest.mark.parametrize("elements", [8191, 8192, 8200])
def test_blocks_of_several_parts(device: Device, elements: int) -> None:
    """A CTA moves 16 KB: 8,192 elements of two bytes, where they are aligned."""
    caches = [filled(4, elements, dtype=torch.bfloat16, device=str(device.torch_device)) for _ in range(2)]
    buffer = check_gather(device, caches, torch.tensor([3, -1, 0]))
    check_scatter(device, buffer, caches, torch.tensor([1, 2, -1]))


def test_more_caches_than_one_launch_takes(device: Device) -> None:
    caches = [filled(3, 2, 3, dtype=torch.float16, device=str(device.torch_device)) for _ in range(260)]
    buffer = check_gather(device, caches, torch.tensor([2, 0]))
    check_scatter(device, buffer, caches, torch.tensor([1, 2]))


def test_ids_out_of_range_count_as_none(device: Device) -> None:
    caches = [filled(4, 64, dtype=torch.float16, device=str(device.torch_device)) for _ in range(2)]
    ids = torch.tensor([1, 4, -5, 2**40, -(2**62), 0])
    buffer = check_gather(device, caches, ids)
    check_scatter(device, buffer, caches, ids.flip(0))


def test_unaligned_buffer(device: Device) -> None:
    caches = [filled(4, 2, 16, dtype=torch.uint8, device=str(device.torch_device)) for _ in range(2)]
    ids = torch.tensor([2, 3])
    memory = torch.zeros(129, dtype=torch.uint8, device=device.torch_device)
    with device:
        out = ops.gather_blocks(caches, device.put(ids), out=memory[1:].view(2, 2, 2, 16))
    assert memory[0] == 0
    assert torch.equal(out.cpu(), gathered(caches, ids))


def test_nothing_to_do(device: Device) -> None:
    caches = [filled(4, 8, dtype=torch.float32, device=str(device.torch_device))]
    none = torch.zeros(0, dtype=torch.int64)
    buffer = check_gather(device, caches, none)
    check_scatter(device, buffer, caches, none)
    check_scatter(device, torch.zeros(0, 2, 3, device=device.torch_device), [], torch.tensor([0, 1]))
    no_blocks = [caches[0][:0]]
    check_scatter(device, check_gather(device, no_blocks, torch.tensor([0])), no_blocks, torch.tensor([0]))


def test_blocks_beyond_2_31_elements(device: Device) -> None:
    """Case E01; only the pages of the blocks that are used exist."""
    far = 2**30 + 64
    storage = torch.empty(2 * far + 24, dtype=torch.float16, device=device.torch_device)
    cache = storage.as_strided((3, 24), (far, 1)).copy_(torch.randn(3, 24))
    buffer = check_gather(device, [cache], torch.tensor([2, 0]))
    cache[2], cache[0] = 0, 1
    before = cache.clone()
    with device:
        ops.scatter_blocks(buffer, [cache], device.put(torch.tensor([1, 2])))
    before[1], before[2] = buffer[0, 0], buffer[0, 1]
    assert torch.equal(cache, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_the_cpu(layout: str, dtype: torch.dtype) -> None:
    caches = list(make_caches(layout, dtype))
    buffer = ops.gather_blocks(caches, IDS)
    assert torch.equal(buffer, gathered(caches, IDS))
    others = list(make_caches(layout, dtype))
    before = [other.clone() for other in others]
    ids = torch.tensor([1, 5, -1, 2, 0, 9])
    ops.scatter_blocks(buffer, others, ids)
    for c, other in enumerate(others):
        before[c][ids[ids >= 0]] = buffer[c][ids >= 0]
        assert torch.equal(other, before[c])


def test_ids_are_checked_on_the_cpu() -> None:
    caches = [torch.zeros(4, 8) for _ in range(2)]
    buffer = torch.ones(2, 2, 8)
    for bad in (4, -2):
        ids = torch.tensor([0, bad])
        with pytest.raises(IndexError, match=rf"^gather_blocks: block_ids\[1\]: .*< 4, got {bad}"):
            ops.gather_blocks(caches, ids)
        with pytest.raises(IndexError, match=rf"^scatter_blocks: block_ids\[1\]: .*< 4, got {bad}"):
            ops.scatter_blocks(buffer, caches, ids)
    with pytest.raises(ValueError, match=r"^scatter_blocks: block_ids\[1\]: expected each block once, got 3"):
        ops.scatter_blocks(buffer, caches, torch.tensor([3, 3]))
    assert not any(cache.any() for cache in caches)


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_wrong_arguments(device: Device, where: str) -> None:
    place = device.torch_device if where == "device" else torch.device("cpu")
    a, b = (torch.zeros(4, 2, 8, device=place) for _ in range(2))
    ids, buffer = torch.tensor([0, 1], device=place), torch.ones(2, 2, 2, 8, device=place)
    cases = [
        (
            (buffer, [a, b[:, :1]], ids),
            r"caches\[1\]: expected shape \[4, 2, 8\] as caches\[0\], got \[4, 1, 8\]",
        ),
        ((buffer, [a, b.half()], ids), r"caches\[1\]: expected dtype float32 as caches\[0\], got float16"),
        ((buffer, [a, b.transpose(1, 2)], ids), r"caches\[1\]: expected a contiguous last dimension"),
        ((buffer, [a, b], ids.int()), "block_ids: expected dtype int64, got int32"),
        ((buffer, [a, b], ids[None]), r"block_ids: expected shape \[n\], got \[1, 2\]"),
        (
            (buffer[:, :1], [a, b], ids),
            r"NAME: expected shape \[2, 2, 2, 8\] \(caches, block_ids, a block\), got",
        ),
        ((buffer.half(), [a, b], ids), r"NAME: expected dtype float32 as caches\[0\]"),
        ((buffer.transpose(0, 1), [a, b], ids), "NAME: expected a contiguous tensor"),
    ]
    with device if where == "device" else nullcontext():
        for (out, caches, wanted), message in cases:
            with pytest.raises(ValueError, match="^gather_blocks: " + message.replace("NAME", "out")):
                ops.gather_blocks(caches, wanted, out=out)
            with pytest.raises(ValueError, match="^scatter_blocks: " + message.replace("NAME", "buffer")):
                ops.scatter_blocks(out, caches, wanted)
        with pytest.raises(ValueError, match=r"^scatter_blocks: caches\[0\]: expected memory of its own"):
            ops.scatter_blocks(buffer, [a[:1].expand_as(a), b], ids)
        both = torch.zeros(9, 2, 8, device=place)
        with pytest.raises(
            ValueError, match=r"^gather_blocks: out: expected memory apart from that of caches"
        ):
            ops.gather_blocks([both[:4]], ids, out=both[3:5][None])
        with pytest.raises(ValueError, match=r"^gather_blocks: caches: expected at least one tensor"):
            ops.gather_blocks([], ids)
        with pytest.raises(
            TypeError, match=r"^scatter_blocks: caches\[1\]: expected a torch.Tensor, got .*int"
        ):
            ops.scatter_blocks(buffer, [a, 3], ids)  # type: ignore[list-item]
    assert not a.any()
    assert (buffer == 1).all()


def test_schema_and_fake() -> None:
    caches, ids = [torch.randn(4, 8) for _ in range(2)], torch.tensor([0, BLOCKS - 8])
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.inferx.gather_blocks.default, (torch.empty(2, 2, 8), caches, ids), test_utils=checks
    )
    torch.library.opcheck(
        torch.ops.inferx.scatter_blocks.default, (torch.randn(2, 2, 8), caches, ids), test_utils=checks
    )
