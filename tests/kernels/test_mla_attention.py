"""The CUDA source of latent attention, against float64, the CPU backend and itself.

The caches of ``paged`` hold NaN in every slot that no request owns, so each test here also shows that such
slots are never used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_checks import check_result
from harness import Device
from paged_attention_reference import Batch, paged, random_requests
from torch import Tensor

from inferx import ops

F32 = torch.float32
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
MIXED = [(1, 1), (1, 90), (20, 20), (0, 40), (9, 70), (5, 3), (1, 0), (2, 33)]
SHORT = [(1, 40), (3, 37), (0, 5), (2, 1)]


def of(queries: list[Tensor], keys: list[Tensor], value_dim: int, dtype: torch.dtype, **layout: Any) -> Batch:
    """Requests of queries and cache rows, whose beginnings are the values."""
    batch = paged(queries, keys, keys, dtype=layout.pop("cache_dtype", None) or dtype, **layout)
    values = [k[..., :value_dim] for k in batch.keys]
    return replace(batch, query=batch.query.to(dtype), values=values)


def make(
    lengths: list[tuple[int, int]],
    heads: int,
    dims: tuple[int, int],
    dtype: torch.dtype = F32,
    *,
    seed: int = 1,
    **layout: Any,
) -> Batch:
    """Random requests of (q_len, seq_len); dims: of a key and of a value."""
    queries, keys, _ = random_requests(lengths, heads, 1, dims[0], seed=seed)
    return of(queries, keys, dims[1], dtype, **layout)


def arguments(batch: Batch) -> tuple[Tensor, ...]:
    query, cache, _, *rest = batch.arguments()
    return query, cache[:, :, 0], *rest


def run(device: Device, batch: Batch, scale: float | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    tensors = [device.put(x) for x in arguments(batch)]
    with device:
        out, lse = ops.mla_attention(
            *tensors,
            batch.scale if scale is None else scale,
            value_dim=batch.values[0].shape[-1],
            return_lse=True,
            **options,
        )
    return out.cpu(), lse.cpu()


def check(device: Device, batch: Batch, scale: float | None = None, **options: Any) -> None:
    check_result(run(device, batch, scale, **options), batch, scale)


# ---- float32 arithmetic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(8, 8), (24, 16), (80, 64), (576, 512), (1024, 1024)], ids=str)
def test_float32(device: Device, dims: tuple[int, int]) -> None:
    check(device, make(MIXED if dims[0] < 500 else SHORT, 3, dims))


@pytest.mark.parametrize("cache_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 64])
def test_float32_caches(device: Device, block_size: int, cache_dtype: torch.dtype) -> None:
    check(device, make(SHORT, 4, (40, 32), block_size=block_size, cache_dtype=cache_dtype))


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_dimensions_without_tensor_cores(device: Device, dtype: torch.dtype) -> None:
    check(device, make(SHORT, 4, (88, 56), dtype, block_size=5))


def test_equals_the_cpu_backend(device: Device) -> None:
    batch = make(MIXED, 3, (80, 64), cache_dtype=torch.bfloat16)
    out, lse = run(device, batch)
    expected, expected_lse = ops.mla_attention(*arguments(batch), batch.scale, value_dim=64, return_lse=True)
    torch.testing.assert_close(out, expected, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(lse, expected_lse, rtol=2e-6, atol=4e-6)
