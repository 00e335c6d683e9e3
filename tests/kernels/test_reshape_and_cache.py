"""reshape_and_cache_flash: the CUDA source against torch's indexing and the CPU op."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import Device
from op_checks import FLOATS
from torch import Tensor

from inferx import ops

FP8 = torch.float8_e4m3fn
BLOCKS = 6


def raw(x: Tensor) -> Tensor:
    """The bits, with every NaN as one."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()]
    nan = x.float().isnan()
    return x.contiguous().view(integer).masked_fill(nan, 0x7F)


def converted(x: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """[T, H, D] as a cache of ``dtype`` stores it."""
    if dtype != FP8:
        return x.to(dtype)
    scale = torch.ones(1) if scale is None else scale
    return (x.float() / scale.view(-1, 1)).clamp(-448, 448).to(FP8)


def check(
    device: Device,
    key: Tensor,
    value: Tensor,
    slots: Tensor,
    dtype: torch.dtype,
    *,
    block: int = 16,
    layout: str = "dense",
    scales: tuple[Tensor | None, Tensor | None] = (None, None),
    input_offset: int = 0,
) -> None:
    """Writes into caches full of ones; compares all their memory, on the device and on the CPU."""
    _, heads, dim = key.shape
    extra = 3 if layout == "padded" else 0
    shape = (
        (BLOCKS, 2, heads, block, dim) if layout == "head-major" else (BLOCKS, 2, block, heads, dim + extra)
    )
    storage = torch.ones(shape).to(dtype)

    def caches(storage: Tensor) -> list[Tensor]:
        pair = storage[:, 0], storage[:, 1]
        if layout == "head-major":
            return [cache.transpose(1, 2) for cache in pair]
        return [cache[..., extra:] for cache in pair]

    def arguments(put: Any) -> list[Tensor]:
        rows = torch.cat([torch.zeros(input_offset, dtype=key.dtype), torch.cat([key, value], 1).flatten()])
        fused = put(rows)[input_offset:].view(len(key), 2 * heads, dim)
        return [fused[:, :heads], fused[:, heads:]]

    expected = storage.clone()
    usable = (slots >= 0) & (slots < BLOCKS * block)
    for cache, rows, scale in zip(caches(expected), (key, value), scales, strict=True):
        block_of, offset = slots[usable] // block, slots[usable] % block
        cache[block_of, offset] = converted(rows[usable], dtype, scale)

    on_device, on_cpu = device.put(storage), storage.clone()
    with device:
        put_scales = [None if scale is None else device.put(scale) for scale in scales]
        ops.reshape_and_cache_flash(
            *arguments(device.put), *caches(on_device), device.put(slots), *put_scales
        )
    assert torch.equal(raw(on_device.cpu()), raw(expected))
    ops.reshape_and_cache_flash(
        *arguments(torch.clone), *caches(on_cpu), slots.where(usable, torch.tensor(-1)), *scales
    )
    assert torch.equal(raw(on_cpu), raw(expected))


def random_slots(tokens: int, block: int = 16) -> Tensor:
    slots = torch.randperm(BLOCKS * block)[:tokens]
    slots[1::5] = -1
    if tokens > 8:
        slots[2], slots[3], slots[4] = BLOCKS * block, -(2**40), 2**40
    return slots


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", [*FLOATS, FP8], ids=str)
def test_every_pair_of_types(device: Device, source: torch.dtype, target: torch.dtype) -> None:
    for tokens, heads, dim, layout in (
        (1, 1, 8, "dense"),
        (37, 3, 72, "head-major"),
        (6, 2, 13, "dense"),
        (2, 1, 16, "padded"),
    ):
        key, value = (torch.randn(tokens, heads, dim).to(source) for _ in range(2))
        check(device, key, value, random_slots(tokens), target, layout=layout)


@pytest.mark.parametrize("block", [1, 8, 24])
def test_wide_rows_and_block_sizes(device: Device, block: int) -> None:
    key, value = (torch.randn(5, 9, 128) for _ in range(2))  # 576 columns: three CTAs side by side
    check(device, key, value, random_slots(5, block), torch.float32, block=block)


@pytest.mark.parametrize("input_offset", [1, 4])
def test_unaligned_inputs(device: Device, input_offset: int) -> None:
    key, value = (torch.randn(5, 2, 16).bfloat16() for _ in range(2))
    for dtype in (torch.bfloat16, FP8):
        check(device, key, value, random_slots(5), dtype, input_offset=input_offset)


@pytest.mark.parametrize("which", ["dim", "value", "cache"])
def test_one_thing_that_does_not_fit_vectors(device: Device, which: str) -> None:
    """Everything else is aligned to 16 bytes."""
    dim = 13 if which == "dim" else 16
    rows = torch.randn(2, 3, 2, 24).bfloat16()
    storage = torch.zeros(2, 4, 8, 2, 24, dtype=torch.bfloat16)
    slots = torch.tensor([9, 0, 31])
    with device:
        key, value = device.put(rows)[..., :dim].unbind()
        caches = list(device.put(storage)[..., :dim].unbind())
        if which == "value":
            value = device.put(rows)[1, ..., 1 : dim + 1]
        if which == "cache":
            caches[1] = device.put(storage)[1, ..., 1 : dim + 1]
        ops.reshape_and_cache_flash(key, value, *caches, device.put(slots))
    for cache, x in zip(caches, (key, value), strict=True):
        expected = torch.zeros(32, 2, dim, dtype=torch.bfloat16)
        expected[slots] = x.cpu()
        assert torch.equal(cache.cpu().reshape(32, 2, dim), expected)


@pytest.mark.parametrize("dim", [16, 5])
def test_scales_of_float8(device: Device, dim: int) -> None:
    key, value = (100 * torch.randn(9, 3, dim).half() for _ in range(2))
    one, per_head = torch.tensor([0.3]), torch.tensor([0.05, 1.0, 7.5])
    for scales in ((one, per_head), (per_head, None), (torch.tensor(3.0), one)):
        check(device, key, value, random_slots(9), FP8, scales=scales)


@pytest.mark.parametrize("target", [torch.float16, torch.bfloat16, FP8], ids=str)
def test_rounds_to_nearest_even(device: Device, target: torch.dtype) -> None:
    """Every exponent, with mantissas at, just below and just above ties; infinities; NaN stays NaN."""
    high = torch.arange(0, 2**16, 11) << 16
    low = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    patterns = (high[:, None] | low).flatten()
    values = (patterns - ((patterns >> 31) << 32)).to(torch.int32).view(torch.float32)
    grid = torch.arange(0, 465, 0.5) * 2.0 ** torch.arange(-12, 1)[:, None]  # float8's ties
    edges = torch.tensor([float("inf"), -float("inf"), float("nan"), 448.0, 464.0, -1e30, 2.0**-10, -0.0])
    values = torch.cat([edges, grid.flatten(), -grid.flatten(), values])
    values = values[: len(values) // 384 * 384].view(-1, 1, 384)
    assert values.isnan().any()
    check(device, values, values.flip(0), torch.arange(len(values)), target, block=len(values))


def test_quotients_next_to_ties(device: Device) -> None:
    """The kernel does not divide.  Scales whose reciprocal is inexact, and values next to float8's ties."""
    near_eighths = torch.randint(8, 16, (8,)) / 8 + torch.randint(-20, 20, (8,)) * 2.0**-23
    scale = torch.cat([torch.tensor([0.1, 1 / 3, 3.0, -0.7]), torch.rand(4) * 3, near_eighths])
    ties = torch.arange(16.0, 32.0)[:, None] * 2.0 ** torch.arange(-10, 4)  # halfway and whole steps
    near = (ties.flatten() * scale[:, None]).view(torch.int32)[..., None] + torch.arange(
        -2, 3, dtype=torch.int32
    )
    key = near.view(torch.float32).reshape(1, 16, -1)
    check(device, key, -key, torch.tensor([3]), FP8, scales=(scale, scale))


@pytest.mark.parametrize("dim", [16, 5])
def test_scales_at_the_ends_of_their_range(device: Device, dim: int) -> None:
    """Where a reciprocal overflows or is subnormal, the result is a division's nonetheless."""
    inf, nan = float("inf"), float("nan")
    scales = torch.tensor(
        [0.0, -0.0, 1e-45, -3e-39, 1.2e-38, 2.0**-126, 1e38, -3.4e38, 1.8e38, inf, -inf, nan]
    )
    values = torch.tensor([0.0, -0.0, 1.0, -3e-38, 1e-45, 4e-44, 3.3e38, -3.4e38, inf, nan, 1e-20, -1e20])
    spread = values.repeat(dim)[: dim * 12].view(12, dim)
    key = torch.stack([spread, (spread * scales[:, None]).nan_to_num(1.0)])
    check(device, key, key.flip(0), torch.tensor([3, 9]), FP8, scales=(scales, scales))


def test_blocks_beyond_2_31_elements(device: Device) -> None:
    """Case E01; only the pages that are written exist."""
    far = 2**30 + 64
    storage = torch.empty(2 * far + 128, dtype=torch.bfloat16, device=device.torch_device)
    caches = [storage.as_strided((3, 2, 1, 16), (far, 16, 16, 1), at).zero_() for at in (0, 32)]
    key, value = torch.randn(2, 1, 16).bfloat16(), torch.randn(2, 1, 16).bfloat16()
    slots = torch.tensor([5, 0])
    with device:
        ops.reshape_and_cache_flash(device.put(key), device.put(value), *caches, device.put(slots))
    for cache, rows in zip(caches, (key, value), strict=True):
        expected = torch.zeros(3, 2, 1, 16, dtype=torch.bfloat16)
        expected[2, 1], expected[0, 0] = rows[0], rows[1]
        assert torch.equal(cache.cpu(), expected)


def test_nothing_to_do(device: Device) -> None:
    cache = torch.ones(2, 16, 1, 8)
    none = torch.zeros(0, dtype=torch.int64)
    with device:
        put = device.put(cache)
        empty = device.put(torch.zeros(0, 1, 8))
        ops.reshape_and_cache_flash(empty, empty, put, device.put(cache), device.put(none))
        rows = device.put(torch.zeros(1, 1, 8))
        no_blocks = [device.put(torch.zeros(0, 16, 1, 8)) for _ in range(2)]
        ops.reshape_and_cache_flash(rows, rows, *no_blocks, device.put(torch.tensor([0])))
    assert torch.equal(put.cpu(), cache)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (r"slot_mapping: expected dtype int64, got int32",
         {"slot_mapping": torch.zeros(3, dtype=torch.int32)}),
        (r"slot_mapping: expected shape \[T=3\], got \[2\]", {"slot_mapping": torch.tensor([0, 1])}),
        (r"value: expected dtype float32 as key", {"value": torch.ones(3, 2, 8).half()}),
        (r"value_cache: expected dtype float32 as key_cache",
         {"value_cache": torch.zeros(4, 16, 2, 8).to(FP8)}),
        (r"key_cache: expected memory of its own",
         {"key_cache": torch.zeros(1, 16, 2, 8).expand(4, 16, 2, 8)}),
        (r"v_scale: expected None for a cache of float32, got a tensor", {"v_scale": torch.ones(1)}),
        (r"k_scale: expected one element or shape \[num_kv_heads=2\], got \[3\]",
         {"k_scale": torch.ones(3), "key_cache": torch.zeros(4, 16, 2, 8).to(FP8),
          "value_cache": torch.zeros(4, 16, 2, 8).to(FP8)}),
        (r"k_scale: expected dtype float32, got float16",
         {"k_scale": torch.ones(1).half(), "key_cache": torch.zeros(4, 16, 2, 8).to(FP8),
          "value_cache": torch.zeros(4, 16, 2, 8).to(FP8)}),
    ],
)  # fmt: skip
def test_wrong_arguments(device: Device, message: str, changes: dict[str, Any]) -> None:
    given = {
        "key": torch.ones(3, 2, 8),
        "value": torch.ones(3, 2, 8),
        "key_cache": torch.zeros(4, 16, 2, 8),
        "value_cache": torch.zeros(4, 16, 2, 8),
        "slot_mapping": torch.tensor([0, 1, 2]),
        **changes,
    }
    overlapping = "expand" if message.startswith("key_cache") else ""
    with device:
        call = {
            name: tensor.to(device.torch_device) if overlapping else device.put(tensor)
            for name, tensor in given.items()
        }
        with pytest.raises(ValueError, match="^reshape_and_cache_flash: " + message):
            ops.reshape_and_cache_flash(**call)
    assert not call["key_cache"].float().any()
