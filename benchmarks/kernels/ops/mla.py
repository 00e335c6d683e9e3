"""Latent attention: decode and prefill of DeepSeek's models, and the store of their cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from benchmarks.kernels.case import DTYPE_NAMES, Call, Case, Cases, Target, Work

from inferx import ops

RANK, ROPE = 512, 64
SCALE = (128 + ROPE) ** -0.5


@dataclass(frozen=True)
class Model:
    """Query heads of one GPU's share of a model."""

    name: str
    heads: int


CUDA_MODELS = [Model("V3/TP8", 16), Model("V3", 128)]
CPU_MODELS = [Model("V2-Lite", 16)]


def cases(target: Target) -> Cases:
    models = CUDA_MODELS if target.is_cuda else CPU_MODELS
    batches = [1, 8, 32, 64, 256] if target.is_cuda else [1, 16]
    contexts = [1024, 4096, 16384, 65536] if target.is_cuda else [128, 2048, 8192]
    caches = [torch.bfloat16] if target.is_cuda else [torch.float32, torch.bfloat16]
    for model in models[:1] if target.quick else models:
        for dtype in caches:
            for batch in target.pick(batches):
                for context in target.pick(contexts):
                    yield _case(target, model, "decode", batch, 1, context, dtype)
        for tokens in target.pick([512, 2048, 8192] if target.is_cuda else [128, 512]):
            yield _case(target, model, "prefill", 1, tokens, tokens, caches[0])
    for dtype in caches:
        for tokens in target.pick([1, 256, 8192] if target.is_cuda else [1, 64, 512]):
            shape = f"T={tokens} {DTYPE_NAMES[dtype]}"
            yield Case("concat_and_cache_mla", shape, partial(store, target, tokens, dtype))


def _case(
    target: Target, model: Model, kind: str, batch: int, queries: int, context: int, dtype: torch.dtype
) -> Case:
    shape = f"{kind} {model.name} heads={model.heads} B={batch} q={queries} kv={context} {DTYPE_NAMES[dtype]}"
    make = partial(attention, target, model, batch, queries, context, dtype)
    return Case("mla_attention", shape, make, memory=1.2 * batch * context * (RANK + ROPE) * dtype.itemsize)


def attention(
    target: Target, model: Model, batch: int, queries: int, context: int, cache_dtype: torch.dtype
) -> Work:
    device, dtype, block = target.device, target.dtypes[0], 64
    per_request = -(-context // block)
    row_bytes = (RANK + ROPE) * cache_dtype.itemsize
    copies = target.copies(batch * per_request * block * row_bytes) if queries == 1 else 1
    blocks = copies * batch * per_request
    cache = torch.randn(blocks, block, RANK + ROPE, device=device, dtype=torch.bfloat16).to(cache_dtype)
    tables = torch.randperm(blocks, device=device).to(torch.int32).view(copies, batch, per_request)
    cu_seqlens_q = torch.arange(batch + 1, device=device, dtype=torch.int32) * queries
    seq_lens = torch.full((batch,), context, device=device, dtype=torch.int32)
    query = torch.randn(batch * queries, model.heads, RANK + ROPE, device=device).to(dtype)
    out = torch.empty(batch * queries, model.heads, RANK, device=device, dtype=dtype)
    options: dict[str, Any] = {"out": out, "value_dim": RANK}
    if target.is_cuda:
        options["max_query_len"] = queries

    def call(table: torch.Tensor) -> Call:
        return partial(ops.mla_attention, query, cache, table, cu_seqlens_q, seq_lens, SCALE, **options)

    visible = queries * context - queries * (queries - 1) // 2
    return Work(
        [call(table) for table in tables],
        batch * context * row_bytes + query.nbytes + out.nbytes,
        2.0 * batch * model.heads * (RANK + ROPE + RANK) * visible,
        tensor_cores=target.is_cuda,
    )


def store(target: Target, tokens: int, cache_dtype: torch.dtype) -> Work:
    dtype, block = target.dtypes[0], 64
    nbytes = tokens * (RANK + ROPE) * (dtype.itemsize + cache_dtype.itemsize)
    copies = target.copies(nbytes)
    blocks = -(-copies * tokens // block)
    cache = torch.zeros(blocks, block, RANK + ROPE, device=target.device, dtype=cache_dtype)
    slots = torch.randperm(blocks * block)[: copies * tokens].view(copies, tokens).to(target.device)
    rows = [torch.randn(tokens, RANK + ROPE, device=target.device).to(dtype) for _ in range(copies)]
    calls: list[Call] = [
        partial(ops.concat_and_cache_mla, row[:, :RANK], row[:, RANK:], cache, slot)
        for row, slot in zip(rows, slots, strict=True)
    ]
    return Work(calls, nbytes)
