"""KV cache ops: storing new keys and values, copying and gathering blocks."""

from __future__ import annotations

from functools import partial

import torch
from benchmarks.kernels.case import DTYPE_NAMES, Case, Cases, Target, Work

from inferx import ops

HEAD_DIM = 128
LAYERS = 32


def cases(target: Target) -> Cases:
    dtypes = [torch.bfloat16, torch.float8_e4m3fn] if target.is_cuda else [torch.float32, torch.bfloat16]
    for cache_dtype in dtypes:
        for heads in (8, 1):
            for block in (16, 64):
                for tokens in target.pick([1, 256, 8192] if target.is_cuda else [1, 64, 512]):
                    shape = f"T={tokens} kv_heads={heads} block={block} {DTYPE_NAMES[cache_dtype]}"
                    yield Case(
                        "reshape_and_cache_flash",
                        shape,
                        partial(store, target, tokens, heads, block, cache_dtype),
                    )
    dtype = dtypes[0]
    for pairs in target.pick([1, 16, 256] if target.is_cuda else [1, 16]):
        shape = f"{pairs} blocks of 16, {LAYERS} layers, kv_heads=8 {DTYPE_NAMES[dtype]}"
        yield Case("copy_blocks", shape, partial(copy, target, pairs, dtype))
        yield Case("gather_blocks", shape, partial(gather, target, pairs, dtype))


def _scales(target: Target, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    if dtype != torch.float8_e4m3fn:
        return {}
    return {"k_scale": torch.ones(1, device=target.device), "v_scale": torch.ones(1, device=target.device)}


def store(target: Target, tokens: int, heads: int, block: int, cache_dtype: torch.dtype) -> Work:
    dtype = target.dtypes[0]
    nbytes = 2 * tokens * heads * HEAD_DIM * (dtype.itemsize + cache_dtype.itemsize)
    copies = target.copies(nbytes)
    blocks = -(-copies * tokens // block)
    caches = [
        torch.zeros(blocks, block, heads, HEAD_DIM, device=target.device, dtype=cache_dtype) for _ in range(2)
    ]
    slots = torch.randperm(blocks * block)[: copies * tokens].view(copies, tokens).to(target.device)
    sets = [
        torch.randn(2, tokens, heads, HEAD_DIM, device=target.device).to(dtype).unbind(0)
        for _ in range(copies)
    ]
    call = partial(ops.reshape_and_cache_flash, **_scales(target, cache_dtype))
    return Work(
        [partial(call, k, v, *caches, slot) for (k, v), slot in zip(sets, slots, strict=True)], nbytes
    )


def _caches(target: Target, blocks: int, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    pool = torch.zeros(2, LAYERS, blocks, 16, 8, HEAD_DIM, device=target.device, dtype=dtype)
    return list(pool[0].unbind(0)), list(pool[1].unbind(0))


def copy(target: Target, pairs: int, dtype: torch.dtype) -> Work:
    nbytes = 2 * 2 * LAYERS * pairs * 16 * 8 * HEAD_DIM * dtype.itemsize
    copies = target.copies(nbytes)
    keys, values = _caches(target, 2 * pairs * copies, dtype)
    mappings = torch.randperm(2 * pairs * copies).view(copies, pairs, 2).to(target.device)
    return Work(
        [partial(ops.copy_blocks, keys, values, mapping.contiguous()) for mapping in mappings], nbytes
    )


def gather(target: Target, pairs: int, dtype: torch.dtype) -> Work:
    nbytes = 2 * 2 * LAYERS * pairs * 16 * 8 * HEAD_DIM * dtype.itemsize
    copies = target.copies(nbytes)
    keys, values = _caches(target, pairs * copies, dtype)
    ids = torch.randperm(pairs * copies).view(copies, pairs).to(target.device)
    out = ops.gather_blocks(keys, values, ids[0])
    return Work([partial(ops.gather_blocks, keys, values, i, out=out) for i in ids], nbytes)
