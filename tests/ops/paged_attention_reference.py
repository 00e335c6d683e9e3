"""A readable float64 paged attention, and batches to try it on."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class Batch:
    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_tables: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    keys: list[torch.Tensor] = field(default_factory=list)  # per request [seq_len, Hk, D], as stored
    values: list[torch.Tensor] = field(default_factory=list)

    @property
    def scale(self) -> float:
        return self.query.shape[-1] ** -0.5

    def arguments(self) -> tuple[torch.Tensor, ...]:
        return (
            self.query, self.key_cache, self.value_cache, self.block_tables, self.cu_seqlens_q, self.seq_lens,
        )  # fmt: skip


def paged(
    queries: list[torch.Tensor],
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    *,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    head_major: bool = False,
    spare_blocks: int = 3,
    seed: int = 0,
) -> Batch:
    """Puts the requests' keys and values into a cache, blocks in random order, all else NaN."""
    generator = torch.Generator().manual_seed(seed)
    heads, dim = keys[0].shape[1:]
    counts = [-(-len(k) // block_size) for k in keys]
    total = sum(counts) + spare_blocks
    order = torch.randperm(total, generator=generator).to(torch.int32)
    shape = (total, heads, block_size, dim) if head_major else (total, block_size, heads, dim)
    caches = [torch.full(shape, float("nan"), dtype=dtype) for _ in range(2)]
    if head_major:
        caches = [c.transpose(1, 2) for c in caches]
    tables = torch.full((len(keys), max([*counts, 1])), 2**31 - 1, dtype=torch.int32)
    used = 0
    for b, (k, v) in enumerate(zip(keys, values, strict=True)):
        ids = order[used : used + counts[b]]
        used += counts[b]
        tables[b, : counts[b]] = ids
        for i, block in enumerate(ids.tolist()):
            rows = slice(i * block_size, min((i + 1) * block_size, len(k)))
            for cache, source in zip(caches, (k, v), strict=True):
                cache[block, : rows.stop - rows.start] = source[rows].to(dtype)
    lengths = torch.tensor([0, *[len(q) for q in queries]])
    return Batch(
        torch.cat(queries),
        caches[0],
        caches[1],
        tables,
        lengths.cumsum(0).to(torch.int32),
        torch.tensor([len(k) for k in keys], dtype=torch.int32),
        [k.to(dtype) for k in keys],
        [v.to(dtype) for v in values],
    )


def random_requests(
    lengths: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, seed: int, spread: float = 1.0
) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Queries, keys and values of requests of (q_len, seq_len)."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    queries = [randn(q, heads, dim) * spread for q, _ in lengths]
    keys = [randn(s, kv_heads, dim) for _, s in lengths]
    values = [randn(s, kv_heads, dim) for _, s in lengths]
    return queries, keys, values


def reference(
    batch: Batch,
    scale: float | None = None,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs and log-sum-exps in float64."""
    scale = batch.scale if scale is None else scale
    outputs, lses = [], []
    starts = batch.cu_seqlens_q.tolist()
    for b, (k, v) in enumerate(zip(batch.keys, batch.values, strict=True)):
        q = batch.query[starts[b] : starts[b + 1]].double()
        group = q.shape[1] // k.shape[1]
        k, v = (t.double().repeat_interleave(group, dim=1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        position = torch.arange(len(q))[:, None] + len(k) - len(q)
        key = torch.arange(len(k))[None]
        visible = (key <= position) & ((key > position - window) if window else torch.tensor(True))
        scores = scores.masked_fill(~visible, -torch.inf)
        if sinks is not None:
            column = sinks.double()[:, None, None].expand(-1, len(q), 1)
            scores = torch.cat([scores, column], dim=-1)
        lse = scores.logsumexp(-1) if scores.shape[-1] else scores.new_full(scores.shape[:2], -torch.inf)
        weights = torch.exp(scores - torch.where(lse.isinf(), 0.0, lse)[..., None])[..., : len(k)]
        outputs.append(torch.einsum("hqk,khd->qhd", weights, v))
        lses.append(lse.T)
    return torch.cat(outputs), torch.cat(lses)
