"""Paged attention: decode and prefill at the shapes of models in use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from benchmarks.kernels.case import DTYPE_NAMES, Call, Case, Cases, Target, Work
from benchmarks.kernels.ops import attention_peers as peers

from inferx import ops


@dataclass(frozen=True)
class Model:
    """Heads of one GPU's share of a model."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int


CUDA_MODELS = [Model("Llama-8B", 32, 8, 128), Model("70B/TP8", 8, 1, 128), Model("Qwen3-30B-A3B", 32, 4, 128)]
CPU_MODELS = [Model("SmolLM2-135M", 9, 3, 64), Model("Llama-8B", 32, 8, 128)]


def cases(target: Target) -> Cases:
    models = CUDA_MODELS if target.is_cuda else CPU_MODELS
    batches = [1, 8, 32, 64, 256] if target.is_cuda else [1, 16, 64]
    contexts = [1024, 4096, 16384, 131072] if target.is_cuda else [128, 1024, 8192]
    caches = [torch.bfloat16, torch.float8_e4m3fn] if target.is_cuda else [torch.float32, torch.bfloat16]
    for model in models[:1] if target.quick else models:
        for cache_dtype in caches:
            for block in [16, 64] if target.is_cuda else [16]:
                for batch in target.pick(batches):
                    for context in target.pick(contexts):
                        yield _case(target, model, "decode", batch, 1, context, block, cache_dtype)
        for tokens in target.pick([1024, 4096, 16384] if target.is_cuda else [512, 2000]):
            yield _case(target, model, "prefill", 1, tokens, tokens, 16, caches[0])
        chunk = 2048 if target.is_cuda else 512
        yield _case(target, model, "chunk", 1, chunk, 4 * chunk, 16, caches[0])


def _case(
    target: Target,
    model: Model,
    kind: str,
    batch: int,
    queries: int,
    context: int,
    block: int,
    dtype: torch.dtype,
) -> Case:
    per_token = 2 * model.kv_heads * model.head_dim * dtype.itemsize
    shape = f"{kind} {model.name} B={batch} q={queries} kv={context} block={block} {DTYPE_NAMES[dtype]}"
    make = partial(attention, target, model, batch, queries, context, block, dtype)
    return Case("paged_attention", shape, make, memory=1.2 * batch * context * per_token)


def attention(
    target: Target, model: Model, batch: int, queries: int, context: int, block: int, cache_dtype: torch.dtype
) -> Work:
    device, dtype = target.device, target.dtypes[0]
    per_request = -(-context // block)
    block_bytes = 2 * block * model.kv_heads * model.head_dim * cache_dtype.itemsize
    copies = target.copies(batch * per_request * block_bytes) if queries == 1 else 1
    blocks = copies * batch * per_request
    caches = [
        torch.randn(blocks, block, model.kv_heads, model.head_dim, device=device, dtype=torch.bfloat16).to(
            cache_dtype
        )
        for _ in range(2)
    ]
    tables = torch.randperm(blocks, device=device).to(torch.int32).view(copies, batch, per_request)
    cu_seqlens_q = torch.arange(batch + 1, device=device, dtype=torch.int32) * queries
    seq_lens = torch.full((batch,), context, device=device, dtype=torch.int32)
    query = torch.randn(batch * queries, model.heads, model.head_dim, device=device).to(dtype)
    out = torch.empty_like(query)
    options: dict[str, Any] = {"out": out}
    if target.is_cuda:
        options["max_query_len"] = queries
    if cache_dtype == torch.float8_e4m3fn:
        options |= {name: torch.ones(1, device=device) for name in ("k_scale", "v_scale")}
    scale = model.head_dim**-0.5

    def call(table: torch.Tensor) -> Call:
        return partial(ops.paged_attention, query, *caches, table, cu_seqlens_q, seq_lens, scale, **options)

    visible = queries * context - queries * (queries - 1) // 2
    moved = batch * context * block_bytes / block + 2 * query.nbytes
    problem = peers.Problem(
        query, caches[0], caches[1], tables, cu_seqlens_q, seq_lens, scale, queries, context
    )
    return Work(
        [call(table) for table in tables],
        moved,
        4.0 * batch * model.heads * model.head_dim * visible,
        tensor_cores=target.is_cuda,
        peers=peers.calls_of(problem, target),
    )
