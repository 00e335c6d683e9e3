"""Cascade attention against paged attention over whole tables and float64, on devices and the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from attention_checks import E4M3, check_result, of, put
from harness import Device
from op_checks import assert_same_bits
from paged_attention_reference import Batch, random_requests, reference
from torch import Tensor

from inferx import ops
from inferx.ops import cascade

DECODES = [(1, 1), (1, 40), (1, 17)]
CHUNKS = [(1, 5), (20, 30), (0, 3), (3, 3)]


@contextmanager
def splits_of(keys: int) -> Iterator[None]:
    before, cascade._SPLIT = cascade._SPLIT, keys
    try:
        yield
    finally:
        cascade._SPLIT = before


def shared_prefix(
    lengths: list[tuple[int, int]],
    num_common: int,
    dtype: torch.dtype,
    cache_dtype: torch.dtype | None = None,
    *,
    heads: tuple[int, int] = (4, 2),
    dim: int = 64,
    **layout: Any,
) -> tuple[Batch, Tensor]:
    """A batch whose tables hold what the requests do not share, and the blocks that hold the prefix.

    Its `keys` and `values` are whole, for `reference`.
    """
    queries, keys, values = random_requests([*lengths, (0, num_common)], *heads, dim, seed=4)
    batch = of((queries, keys, values), dtype, cache_dtype, **layout)
    common = batch.block_tables[-1, : -(-num_common // batch.key_cache.shape[1])].clone()
    for side in (batch.keys, batch.values):
        prefix = side.pop()
        side[:] = [torch.cat([prefix, private]) for private in side]
    batch.block_tables, batch.cu_seqlens_q, batch.seq_lens = (
        batch.block_tables[:-1].clone(), batch.cu_seqlens_q[:-1].clone(), batch.seq_lens[:-1].clone(),
    )  # fmt: skip
    return batch, common


def run(device: Device | None, batch: Batch, common: Tensor, num_common: int, **options: Any) -> Any:
    if device is None:
        first, last = batch.arguments()[:3], batch.arguments()[3:]
        return ops.cascade_attention(
            *first, common, num_common, *last, batch.scale, return_lse=True, **options
        )
    moved = put(device, batch).arguments()
    options = {k: device.put(v) if isinstance(v, Tensor) else v for k, v in options.items()}
    with device:
        out, lse = ops.cascade_attention(
            *moved[:3], device.put(common), num_common, *moved[3:], batch.scale, return_lse=True, **options
        )
    return out.cpu(), lse.cpu()


def check(result: tuple[Tensor, Tensor], batch: Batch, **options: Any) -> None:
    """Results of 16 bits are joined from parts that have been rounded: within two steps of values about 1."""
    if batch.query.dtype == torch.float32:
        check_result(result, batch, **options)
        return
    expected, expected_lse = reference(batch, **options)
    atol = 2 * torch.finfo(batch.query.dtype).eps
    torch.testing.assert_close(result[0].double(), expected, rtol=atol, atol=atol)
    torch.testing.assert_close(result[1].double(), expected_lse, rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("num_common", [1, 64, 150])
@pytest.mark.parametrize("lengths", [DECODES, CHUNKS], ids=["decodes", "chunks"])
@pytest.mark.parametrize(
    ("dtype", "cache_dtype"),
    [(torch.bfloat16, None), (torch.float16, E4M3), (torch.float32, torch.float16)],
    ids=str,
)
def test_matches_float64(
    device: Device,
    dtype: torch.dtype,
    cache_dtype: torch.dtype | None,
    lengths: list[tuple[int, int]],
    num_common: int,
) -> None:
    batch, common = shared_prefix(lengths, num_common, dtype, cache_dtype)
    check(run(device, batch, common, num_common), batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("splits", [1, 2, 3, 4, 7])
def test_prefix_in_splits(device: Device, splits: int, dtype: torch.dtype) -> None:
    """Splits of 32 keys, the last one not full; joined in pairs."""
    num_common = 32 * splits - 5
    sinks = torch.tensor([-torch.inf, 0.5, 2.0, 7.0])
    batch, common = shared_prefix([(9, 20), (1, 7)], num_common, dtype)
    with splits_of(32):
        result = run(device, batch, common, num_common, sinks=sinks, softcap=3.0)
    check(result, batch, sinks=sinks, softcap=3.0)


def test_scales_and_layout(device: Device) -> None:
    k_scale, v_scale = torch.tensor([0.5, 1.5]), torch.tensor(2.0)
    batch, common = shared_prefix(CHUNKS, 100, torch.bfloat16, E4M3, block_size=24, head_major=True, dim=72)
    result = run(device, batch, common, 100, k_scale=k_scale, v_scale=v_scale)
    batch.keys = [k.double() * k_scale.reshape(-1, 1) for k in batch.keys]
    batch.values = [v.double() * 2.0 for v in batch.values]
    atol = 4 * torch.finfo(torch.bfloat16).eps  # values are twice as large
    expected, expected_lse = reference(batch)
    torch.testing.assert_close(result[0].double(), expected, rtol=atol, atol=atol)
    torch.testing.assert_close(result[1].double(), expected_lse, rtol=2e-6, atol=4e-6)


def test_in_place_and_without_a_prefix(device: Device) -> None:
    batch, common = shared_prefix(CHUNKS, 70, torch.float32)
    expected, _ = run(device, batch, common, 70)
    moved = put(device, batch)
    arguments = moved.arguments()
    with device:
        out = ops.cascade_attention(
            *arguments[:3], device.put(common), 70, *arguments[3:], batch.scale, out=moved.query
        )
    assert out is moved.query
    assert_same_bits(moved.query.cpu(), expected)
    alone, alone_lse = run(device, batch, common[:0], 0)
    batch.keys, batch.values = ([x[70:] for x in side] for side in (batch.keys, batch.values))
    check((alone, alone_lse), batch)


@pytest.mark.parametrize("num_common", [0, 1, 64, 150])
@pytest.mark.parametrize("options", [{}, {"softcap": 2.0, "sinks": torch.linspace(-1, 1, 4)}], ids=str)
def test_on_the_cpu(options: dict[str, Any], num_common: int) -> None:
    batch, common = shared_prefix(CHUNKS, num_common, torch.float32, torch.bfloat16)
    check(run(None, batch, common, num_common, **options), batch, **options)


def test_empty() -> None:
    batch, common = shared_prefix([(0, 3), (0, 0)], 20, torch.float32)
    out, lse = run(None, batch, common, 20)
    assert out.shape == (0, 4, 64)
    assert lse.shape == (0, 4)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("num_common: expected at most 32 .*, got 33", {"num_common": 33}),
        ("num_common: expected a number >= 0, got -1", {"num_common": -1}),
        ("common_blocks: expected 1 dimension, got 2", {"common_blocks": torch.zeros(1, 2).int()}),
        ("query: expected 3 dimensions, got 2", {"query": torch.zeros(4, 64)}),
        ("key_cache: expected 4 dimensions, got 3", {"key_cache": torch.zeros(4, 2, 64)}),
    ],
)
def test_wrong_arguments(message: str, change: dict[str, Any]) -> None:
    batch, common = shared_prefix([(1, 3)], 20, torch.float32)
    names = ("query", "key_cache", "value_cache", "block_tables", "cu_seqlens_q", "seq_lens")
    arguments = dict(zip(names, batch.arguments(), strict=True))
    arguments |= {"common_blocks": common, "num_common": 20, "scale": 1.0}
    with pytest.raises(ValueError, match="cascade_attention: " + message):
        ops.cascade_attention(**{**arguments, **change})


def test_no_window() -> None:
    batch, common = shared_prefix([(1, 3)], 20, torch.float32)
    with pytest.raises(TypeError, match="window"):
        run(None, batch, common, 20, window=5)
