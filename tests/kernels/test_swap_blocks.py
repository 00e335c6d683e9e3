"""swap_blocks: both ways of copying over every layout; all memory under the destination is compared."""

from __future__ import annotations

import pytest
import torch
from cache_layouts import BLOCKS, LAYOUTS, filled, make_caches, whole_memory
from harness import Device
from torch import Tensor

from inferx import _C, ops

PAIRS = [(3, 5), (4, 6), (5, 7), (0, 0), (10, 1), (10, 2), (9, 3)]
SHAPED = [name for name in LAYOUTS if name not in ("odd bytes", "nothing in a block")]


def pinned(tensor: Tensor) -> Tensor:
    """The same view of a pinned copy of all its memory."""
    memory = whole_memory(tensor).pin_memory().view(tensor.dtype)
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def expected_memory(src: Tensor, dst: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    memory = whole_memory(dst).cpu().clone()
    view = memory.view(dst.dtype).as_strided(dst.shape, dst.stride(), dst.storage_offset())
    for source, destination in pairs:
        view[destination] = src[source].cpu()
    return memory


def check(device: Device, src: Tensor, dst: Tensor, pairs: list[tuple[int, int]], path: str = "auto") -> None:
    """src and dst on the CPU.  On a GPU: into it, out of it, within it.  And by the CPU op."""
    mapping = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
    expected = expected_memory(src, dst, pairs)

    def copy_of(tensor: Tensor) -> Tensor:
        memory = whole_memory(tensor).clone().view(tensor.dtype)
        return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def on_gpu(tensor: Tensor) -> Tensor:
        memory = whole_memory(tensor).cuda().view(tensor.dtype)
        return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    on_cpu = copy_of(dst)
    ops.swap_blocks(src, on_cpu, mapping)
    assert torch.equal(whole_memory(on_cpu), expected)
    if device.is_simt:
        places = [(copy_of(src), copy_of(dst))]
    else:
        places = [(on_gpu(src), on_gpu(dst)), (pinned(src), on_gpu(dst)), (on_gpu(src), pinned(dst))]
        if path != "kernel":  # which cannot reach pageable memory
            places += [(src, on_gpu(dst)), (on_gpu(src), copy_of(dst))]
    with device:
        for source, destination in places:
            if path == "auto":
                ops.swap_blocks(source, destination, mapping)
            else:
                module = device.module if device.module is not None else _C.cuda
                module.swap_blocks(source, destination, mapping, path)
            if not device.is_simt:
                torch.cuda.synchronize()
            assert torch.equal(whole_memory(destination).cpu(), expected)


@pytest.mark.parametrize("path", ["kernel", "copy"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(device: Device, layout: str, path: str) -> None:
    """The source has the layout, then the destination, then both."""
    src, dst = make_caches(layout, torch.bfloat16)
    check(device, src, dst, PAIRS, path)
    if layout in SHAPED:
        dense, _ = make_caches("dense", torch.bfloat16)
        check(device, src, dense, PAIRS, path)
        check(device, dense, dst, PAIRS, path)


@pytest.mark.parametrize("path", ["kernel", "copy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.float8_e4m3fn, torch.int64], ids=str)
def test_types_and_different_numbers_of_blocks(device: Device, dtype: torch.dtype, path: str) -> None:
    src, dst = (filled(n, 4, 2, 9, dtype=dtype, device="cpu") for n in (3, 20))
    check(device, src, dst, [(2, 19), (0, 4), (1, 5), (2, 6)], path)
    check(device, src, dst, [(2, 18), (0, 3)])


@pytest.mark.parametrize("path", ["kernel", "copy"])
def test_dimensions_in_another_order_with_gaps(device: Device, path: str) -> None:
    src = filled(5, 4, 3, 8, dtype=torch.float16, device="cpu")[:, :, :2].transpose(1, 2)
    dst = filled(5, 2, 4, 9, dtype=torch.float16, device="cpu")[..., 1:]
    check(device, src, dst, [(4, 0), (0, 1)], path)


@pytest.mark.parametrize("path", ["kernel", "copy"])
def test_more_pairs_than_one_launch_takes(device: Device, path: str) -> None:
    src, dst = (filled(500, 3, dtype=torch.int16, device="cpu") for _ in range(2))
    pairs = list(zip(torch.randperm(500)[:450].tolist(), torch.randperm(500)[:450].tolist(), strict=True))
    check(device, src, dst, pairs, path)


def test_blocks_of_several_parts(device: Device) -> None:
    src, dst = (filled(4, 8200, dtype=torch.bfloat16, device="cpu") for _ in range(2))
    check(device, src, dst, [(3, 0), (1, 2)], "kernel")


def test_nothing_to_do(device: Device) -> None:
    src, dst = make_caches("dense", torch.float32)
    check(device, src, dst, [])


def test_blocks_beyond_2_31_elements(device: Device) -> None:
    """Case E01; only the pages of the blocks that are used exist."""
    far = 2**30 + 64
    src = torch.randn(2, 24).half().to(device.torch_device)
    dst = torch.empty(2 * far + 24, dtype=torch.float16, device=device.torch_device).as_strided(
        (3, 24), (far, 1)
    )
    dst.zero_()
    for path in ("kernel", "copy"):
        with device:
            module = device.module if device.module is not None else _C.cuda
            module.swap_blocks(src, dst, torch.tensor([[1, 2]]), path)
            back = torch.zeros(2, 24, dtype=torch.float16, device=device.torch_device)
            module.swap_blocks(dst, back, torch.tensor([[2, 0]]), path)
        assert torch.equal(dst[2].cpu(), src[1].cpu())
        assert torch.equal(back[0].cpu(), src[1].cpu())
        assert not dst[:2].any()
        dst.zero_()


def test_runs_of_consecutive_pairs_are_one_copy() -> None:
    runs = _C._block_runs
    assert runs(torch.tensor([[3, 5], [4, 6], [5, 7], [7, 8]])) == [(3, 5, 3), (7, 8, 1)]
    assert runs(torch.tensor([[5, 7], [3, 5], [4, 6]])) == [(3, 5, 3)]
    assert runs(torch.tensor([[1, 2], [1, 3], [2, 4]])) == [(1, 2, 1), (1, 3, 2)]
    assert runs(torch.tensor([[2, 0], [1, 1], [0, 2]])) == [(0, 2, 1), (1, 1, 1), (2, 0, 1)]
    assert runs(torch.empty(0, 2, dtype=torch.int64)) == []


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_wrong_arguments(device: Device, where: str) -> None:
    src, dst = make_caches("dense", torch.float32)
    before = dst.clone()
    if where == "device":
        src, dst = src.to(device.torch_device), dst.to(device.torch_device)
    pair, gaps = torch.tensor([[0, 1]]), torch.zeros(1, 4, 4, 4, 4, device=src.device)
    cases: list[tuple[tuple[Tensor, Tensor, Tensor], type[Exception], str]] = [
        ((src, dst, torch.tensor([[0, 1], [BLOCKS, 2]])), IndexError,
         rf"block_mapping\[1\]: expected 0 <= block < {BLOCKS}, got {BLOCKS}"),
        ((src, dst[:4], torch.tensor([[5, 4]])), IndexError,
         r"block_mapping\[0\]: expected 0 <= block < 4, got 4"),
        ((src, dst, torch.tensor([[-1, 4]])), IndexError, r"block_mapping\[0\]: .*got -1"),
        ((src, dst, torch.tensor([[0, 1], [2, 1]])), ValueError, r"block_mapping\[1\]: expected each dest"),
        ((src, dst, pair.int()), ValueError, "block_mapping: expected dtype int64, got int32"),
        ((src, dst, pair[0]), ValueError, r"block_mapping: expected shape \[n, 2\], got \[2\]"),
        ((src, dst.half(), pair), ValueError, "dst: expected dtype float32 as src, got float16"),
        ((src, dst[:, :8], pair), ValueError, "dst: expected blocks like src's"),
        ((src, src, pair), ValueError, "dst: expected memory apart from that of src"),
        ((src, dst[:1].expand_as(dst), pair), ValueError, "dst: expected memory of its own"),
        ((src.transpose(1, 3), dst, pair), ValueError, "src: expected a contiguous last dimension"),
        ((gaps[:, :3, :3, :3, :3], gaps.new_zeros(1, 3, 3, 3, 3), torch.tensor([[0, 0]])), ValueError,
         "src: expected blocks of at most three dimensions"),
    ]  # fmt: skip
    with device:
        for arguments, error, message in cases:
            with pytest.raises(error, match=f"^swap_blocks: {message}"):
                ops.swap_blocks(*arguments)
    assert torch.equal(dst.cpu(), before)


def test_schema_and_fake() -> None:
    src, dst = torch.randn(3, 4), torch.randn(5, 4)
    torch.library.opcheck(
        torch.ops.inferx.swap_blocks.default,
        (src, dst, torch.tensor([[0, 1]])),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.gpu
def test_gpu_copies_are_on_torchs_stream() -> None:
    device_side, host = torch.zeros(4, 65536, device="cuda"), torch.ones(4, 65536).pin_memory()
    for path in ("kernel", "copy"):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            torch.cuda._sleep(10_000_000)
            device_side.fill_(7)
            _C.cuda.swap_blocks(device_side, host, torch.tensor([[1, 2]]), path)
        side.synchronize()
        assert (host[2] == 7).all()
        assert (host[1] == 1).all()
        host.fill_(1)
