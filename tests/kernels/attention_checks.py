"""Batches for the attention kernels, and the comparison of their results with float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from harness import Device
from paged_attention_reference import Batch, paged, random_requests, reference
from torch import Tensor

from inferx import ops

E4M3 = torch.float8_e4m3fn


def make(
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    dtype: torch.dtype = torch.bfloat16,
    *,
    cache_dtype: torch.dtype | None = None,
    seed: int = 1,
    spread: float = 1.0,
    **layout: Any,
) -> Batch:
    """Random requests of (q_len, seq_len); whatever they do not own of the cache is NaN."""
    requests = random_requests(lengths, *heads, dim, seed=seed, spread=spread)
    return of(requests, dtype, cache_dtype, **layout)


def of(
    requests: tuple[list[Tensor], ...],
    dtype: torch.dtype,
    cache_dtype: torch.dtype | None = None,
    **layout: Any,
) -> Batch:
    batch = paged(*requests, dtype=cache_dtype or dtype, **layout)
    return replace(batch, query=batch.query.to(dtype))


def put(device: Device, batch: Batch) -> Batch:
    names = ("query", "key_cache", "value_cache", "block_tables", "cu_seqlens_q", "seq_lens")
    return replace(batch, **{name: device.put(getattr(batch, name)) for name in names})


def run(device: Device, batch: Batch, scale: float | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    options = {k: device.put(v) if isinstance(v, Tensor) else v for k, v in options.items()}
    scale = batch.scale if scale is None else scale
    with device:
        out, lse = ops.paged_attention(*put(device, batch).arguments(), scale, return_lse=True, **options)
    return out.cpu(), lse.cpu()


def check_result(
    result: tuple[Tensor, Tensor], batch: Batch, scale: float | None = None, **options: Any
) -> None:
    """Compares with float64.

    Weights and outputs are rounded to the query's type, so a 16-bit output is off by half a step of each:
    relative to the sum of |weight x value|, and to itself.
    """
    out, lse = result
    for name in ("k_scale", "v_scale"):
        factor = options.pop(name, None)
        if factor is not None:
            side = "keys" if name == "k_scale" else "values"
            factor = factor.double().reshape(-1, 1)
            batch = replace(batch, **{side: [x.double() * factor for x in getattr(batch, side)]})
    exact, exact_lse = reference(batch, scale, **options)
    magnitude, _ = reference(replace(batch, values=[v.abs() for v in batch.values]), scale, **options)
    is_exact = out.dtype == torch.float32
    half_step = torch.finfo(out.dtype).eps / 2
    limit = (4e-6 if is_exact else half_step + 3e-5) * magnitude + half_step * exact.abs() + 1e-7
    error = (out.double() - exact).abs()
    assert (error <= limit).all(), f"{(error / limit).max().item()} times the limit"
    torch.testing.assert_close(lse.double(), exact_lse, rtol=2e-6, atol=4e-6)


def check(device: Device, batch: Batch, scale: float | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    result = run(device, batch, scale, **options)
    check_result(result, batch, scale, **options)
    return result


def rows_of(batch: Batch, request: int) -> slice:
    return slice(int(batch.cu_seqlens_q[request]), int(batch.cu_seqlens_q[request + 1]))


def without_causal_mask(batch: Batch) -> Batch:
    """For `reference`, which is causal: each query as a request of its own that sees all keys of its own."""
    starts = batch.cu_seqlens_q.tolist()
    owner = [b for b in range(len(batch.keys)) for _ in range(starts[b + 1] - starts[b])]
    return replace(
        batch,
        cu_seqlens_q=torch.arange(len(owner) + 1, dtype=torch.int32),
        keys=[batch.keys[b] for b in owner],
        values=[batch.values[b] for b in owner],
    )


def spoil_before_window(batch: Batch, window: int) -> None:
    """Blocks before the window of a request's first query belong to others, or their entries are nonsense."""
    starts, (num_blocks, block_size) = batch.cu_seqlens_q.tolist(), batch.key_cache.shape[:2]
    unowned = min(set(range(num_blocks)) - set(batch.block_tables.flatten().tolist()))  # full of NaN
    for b, length in enumerate(batch.seq_lens.tolist()):
        first_seen = max(length - (starts[b + 1] - starts[b]) + 1 - window, 0)
        batch.block_tables[b, : first_seen // block_size] = unowned if b // 2 % 2 else -7
