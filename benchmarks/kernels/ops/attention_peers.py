"""The same attention by other libraries, where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from benchmarks.kernels.case import Call, Target


@dataclass(frozen=True)
class Problem:
    """One call of ``ops.paged_attention``; tables [copies, batch, blocks]."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    tables: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    scale: float
    queries: int
    context: int

    @property
    def batch(self) -> int:
        return self.seq_lens.shape[0]


def calls_of(problem: Problem, target: Target) -> dict[str, list[Call]]:
    """By name; a peer that cannot do this problem is left out."""
    found: dict[str, list[Call]] = {}
    for name, module, make in PEERS:
        if importlib.util.find_spec(module) is None or (name != "torch SDPA" and not target.is_cuda):
            continue
        calls = make(problem)
        if calls:
            found[name] = calls
    return found


def _sdpa(problem: Problem) -> list[Call]:
    """Over contiguous keys and values, which is easier than the paged layout."""
    dtype, limit = problem.key_cache.dtype, 1 << 30
    if (
        dtype != problem.query.dtype
        or problem.batch * problem.context * problem.key_cache[0, 0].nbytes > limit
    ):
        return []
    heads, dim = problem.query.shape[1:]
    query = problem.query.view(problem.batch, problem.queries, heads, dim).transpose(1, 2)
    calls: list[Call] = []
    for _ in range(min(4, problem.tables.shape[0])):
        shape = (problem.batch, problem.key_cache.shape[2], problem.context, dim)
        key, value = (torch.randn(shape, device=query.device, dtype=dtype) for _ in range(2))
        options: dict[str, Any] = {"scale": problem.scale, "enable_gqa": True}
        if problem.queries == problem.context:
            options["is_causal"] = True
        elif problem.queries > 1:
            return []  # bottom-right alignment takes a mask, and with it the slow path
        calls.append(partial(torch.nn.functional.scaled_dot_product_attention, query, key, value, **options))
    return calls


def _flashinfer(problem: Problem) -> list[Call]:
    import flashinfer

    heads, dim = problem.query.shape[1:]
    block, kv_heads = problem.key_cache.shape[1:3]
    per_request = problem.tables.shape[2]
    calls: list[Call] = []
    for table in problem.tables[:4]:
        workspace = torch.empty(256 << 20, dtype=torch.uint8, device=problem.query.device)
        indptr = torch.arange(problem.batch + 1, dtype=torch.int32) * per_request
        last = torch.full((problem.batch,), (problem.context - 1) % block + 1, dtype=torch.int32)
        cache = (problem.key_cache, problem.value_cache)
        types = {"q_data_type": problem.query.dtype, "kv_data_type": problem.key_cache.dtype}
        if problem.queries == 1:
            decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
            decode.plan(
                indptr,
                table.flatten().cpu(),
                last,
                heads,
                kv_heads,
                dim,
                block,
                sm_scale=problem.scale,
                **types,
            )
            calls.append(partial(decode.run, problem.query, cache))
        else:
            prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
            starts, pages = problem.cu_seqlens_q.cpu(), table.flatten().cpu()
            options = {"causal": True, "sm_scale": problem.scale, **types}
            prefill.plan(starts, indptr, pages, last, heads, kv_heads, dim, block, **options)
            calls.append(partial(prefill.run, problem.query, cache))
    return calls


def _flash_attn(problem: Problem) -> list[Call]:
    from flash_attn import flash_attn_with_kvcache

    block, dim = problem.key_cache.shape[1], problem.query.shape[2]
    if block % 256 or problem.key_cache.dtype != problem.query.dtype:
        return []
    query = problem.query.view(problem.batch, problem.queries, -1, dim)
    return [
        partial(
            flash_attn_with_kvcache,
            query,
            problem.key_cache,
            problem.value_cache,
            cache_seqlens=problem.seq_lens,
            block_table=table,
            softmax_scale=problem.scale,
            causal=True,
        )
        for table in problem.tables
    ]


def _vllm(problem: Problem) -> list[Call]:
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    if problem.key_cache.dtype != problem.query.dtype:
        return []
    out = torch.empty_like(problem.query)
    return [
        partial(
            flash_attn_varlen_func,
            q=problem.query,
            k=problem.key_cache,
            v=problem.value_cache,
            out=out,
            cu_seqlens_q=problem.cu_seqlens_q,
            max_seqlen_q=problem.queries,
            seqused_k=problem.seq_lens,
            max_seqlen_k=problem.context,
            softmax_scale=problem.scale,
            causal=True,
            block_table=table,
        )
        for table in problem.tables
    ]


PEERS: list[tuple[str, str, Callable[[Problem], list[Call]]]] = [
    ("torch SDPA", "torch", _sdpa),
    ("FlashInfer", "flashinfer", _flashinfer),
    ("flash-attn", "flash_attn", _flash_attn),
    ("vLLM", "vllm", _vllm),
]
