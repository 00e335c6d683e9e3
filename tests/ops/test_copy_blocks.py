"""copy_blocks: every layout of a cache, memory that must stay, errors; on a GPU when there is one."""

from __future__ import annotations

import pytest
import torch
from cache_layouts import BLOCKS, DTYPES, LAYOUTS, filled, make_caches, whole_memory
from torch import Tensor

from inferx import ops

PAIRS = torch.tensor([[0, 5], [0, 6], [10, 1], [7, 2]])


def check(keys: list[Tensor], values: list[Tensor], mapping: Tensor) -> None:
    """Compares all memory under the caches, so that nothing beside the destinations may change."""
    caches = keys + values
    memories = {cache.untyped_storage().data_ptr(): whole_memory(cache) for cache in caches}
    expected = {pointer: memory.clone() for pointer, memory in memories.items()}
    for cache in caches:
        memory = expected[cache.untyped_storage().data_ptr()].view(cache.dtype)
        copy = memory.as_strided(cache.shape, cache.stride(), cache.storage_offset())
        for source, destination in mapping.tolist():
            copy[destination].copy_(copy[source])
    ops.copy_blocks(keys, values, mapping)
    for pointer, memory in memories.items():
        assert torch.equal(memory, expected[pointer])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, dtype: torch.dtype, device: str) -> None:
    pairs = [make_caches(layout, dtype, device) for _ in range(3)]
    check([key for key, _ in pairs], [value for _, value in pairs], PAIRS)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_layers_of_different_layouts(device: str) -> None:
    pairs = [make_caches(layout, torch.float16, device) for layout in (*LAYOUTS, *LAYOUTS[:2])]
    check([key for key, _ in pairs], [value for _, value in pairs], PAIRS)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_many_layers_and_pairs(device: str) -> None:
    layers, blocks = 140, 64  # more tensors than one launch on a GPU takes
    keys, values = (
        [filled(blocks, 8, 2, 8, dtype=torch.float32, device=device) for _ in range(layers)] for _ in range(2)
    )
    order = torch.randperm(blocks)
    check(keys, values, order.view(-1, 2))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_large_blocks_on_several_threads(threads: int) -> None:
    keys, values = (
        [filled(8, 64, 4, 128, dtype=torch.float32, device="cpu") for _ in range(5)] for _ in range(2)
    )
    before = ops.get_num_threads()
    ops.set_num_threads(threads)
    try:
        check(keys, values, torch.tensor([[0, 1], [2, 3], [2, 4]]))
    finally:
        ops.set_num_threads(before)


def test_nothing_to_do() -> None:
    key, value = make_caches("dense", torch.float32)
    check([key], [value], torch.empty(0, 2, dtype=torch.int64))
    ops.copy_blocks([], [], torch.empty(0, 2, dtype=torch.int64))


def test_offsets_beyond_2_31_elements() -> None:
    far = 2**31 // 2 + 16  # elements per block; only the pages of block 0 and 3 are ever touched
    cache = torch.empty(3 * far + 64, dtype=torch.float16).as_strided((4, 64), (far, 1))
    cache[0], cache[3] = torch.randn(64), 0
    ops.copy_blocks([cache], [torch.zeros(4, 1)], torch.tensor([[0, 3]]))
    assert torch.equal(cache[3], cache[0])


def test_pairs_are_checked_before_anything_is_copied() -> None:
    key, value = make_caches("dense", torch.float32)
    before = key.clone(), value.clone()
    cases: list[tuple[list[list[int]], type[Exception], str]] = [
        (
            [[0, 1], [0, BLOCKS]],
            IndexError,
            rf"block_mapping\[1\]: expected 0 <= block < {BLOCKS}, got {BLOCKS}",
        ),
        ([[0, 1], [-1, 2]], IndexError, rf"block_mapping\[1\]: expected 0 <= block < {BLOCKS}, got -1"),
        ([[0, 1], [2, 1]], ValueError, r"block_mapping\[1\]: expected each destination once, got 1 again"),
        ([[0, 1], [1, 2]], ValueError, r"block_mapping\[0\]: expected a destination that is no source"),
        ([[3, 3]], ValueError, r"block_mapping\[0\]: expected a destination that is no source"),
    ]
    for pairs, error, message in cases:
        with pytest.raises(error, match=message):
            ops.copy_blocks([key], [value], torch.tensor(pairs))
    # The smallest cache sets the limit.
    with pytest.raises(IndexError, match="expected 0 <= block < 3, got 4"):
        ops.copy_blocks([key, key[:3].clone()], [value, value.clone()], torch.tensor([[0, 4]]))
    assert torch.equal(key, before[0])
    assert torch.equal(value, before[1])


def test_wrong_arguments() -> None:
    key, value = make_caches("dense", torch.float32)
    mapping = torch.tensor([[0, 1]])
    cases = [
        (([key] * 2, [value], mapping), "value_caches: expected 2 tensors as key_caches, or none, got 1"),
        (([key], [value], mapping.int()), "block_mapping: expected dtype int64, got int32"),
        (([key], [value], mapping[0]), r"block_mapping: expected shape \[n, 2\], got \[2\]"),
        (
            ([key], [value], torch.tensor([[0, 1, 2]])),
            r"block_mapping: expected shape \[n, 2\], got \[1, 3\]",
        ),
        (
            ([key], [value], torch.arange(6).view(2, 3).t()[:, :]),
            "block_mapping: expected a contiguous tensor",
        ),
        (([key], [value[0, 0, 0]], mapping), r"value_caches\[0\]: expected at least 2 dimensions"),
        (
            ([key, key.transpose(1, 3)], [value] * 2, mapping),
            r"key_caches\[1\]: expected a contiguous last dim",
        ),
        (([key[:1].expand_as(key)], [value], mapping), r"key_caches\[0\]: expected memory of its own"),
        (
            ([key[:, ::2, ::2]], [value], mapping),
            r"key_caches\[0\]: expected blocks that are one run of memory",
        ),
        (([key.to(torch.complex64)], [value], mapping), r"key_caches\[0\]: expected a dtype inferx knows"),
    ]
    for arguments, message in cases:
        with pytest.raises(ValueError, match=f"^copy_blocks: {message}"):
            ops.copy_blocks(*arguments)
    with pytest.raises(TypeError, match=r"key_caches\[1\]: expected a torch.Tensor, got .*int"):
        ops.copy_blocks([key, 3], [value, value], mapping)  # type: ignore[list-item]


@pytest.mark.gpu
def test_gpu_mapping_skips_pairs_out_of_range() -> None:
    key, value = (filled(4, 64, dtype=torch.float16, device="cuda") for _ in range(2))
    expected = key.clone()
    expected[1] = key[0]
    ops.copy_blocks([key], [value], torch.tensor([[0, 1], [0, 4], [-1, 2], [0, 2**40]], device="cuda"))
    assert torch.equal(key, expected)
    with pytest.raises(IndexError, match="got 4"):
        ops.copy_blocks([key], [value], torch.tensor([[0, 4]]))


@pytest.mark.gpu
def test_gpu_runs_on_torchs_stream_and_in_a_graph() -> None:
    key, value = (filled(4, 4096, dtype=torch.float32, device="cuda") for _ in range(2))
    mapping = torch.tensor([[0, 1]], device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.copy_blocks([key], [value], mapping)
    key[0] = 7
    graph.replay()
    torch.cuda.synchronize()
    assert (key[1] == 7).all()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        key[0] = 9
        ops.copy_blocks([key], [value], mapping)
    side.synchronize()
    assert (key[1] == 9).all()
