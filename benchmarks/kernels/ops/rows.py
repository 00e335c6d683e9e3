"""Ops on rows: norms, gated activations, rotary, embedding."""

from __future__ import annotations

from functools import partial

import torch
from benchmarks.kernels.case import DTYPE_NAMES, Case, Cases, Target, Work

from inferx import ops

# Hidden and intermediate sizes: SmolLM2-135M, Qwen3-30B-A3B, Llama-8B, Llama-70B.
HIDDEN = {"cpu": [576, 2048], "cuda": [2048, 4096, 8192]}
INTERMEDIATE = {"cpu": [1536], "cuda": [14336, 28672 // 8]}
TOKENS = {"cpu": [1, 64, 512], "cuda": [1, 64, 1024, 8192]}


def cases(target: Target) -> Cases:
    kind = target.device.type
    for dtype in target.dtypes:
        for tokens in target.pick(TOKENS[kind]):
            for hidden in target.pick(HIDDEN[kind]):
                shape = f"T={tokens} H={hidden} {DTYPE_NAMES[dtype]}"
                yield Case("rms_norm", shape, partial(rms_norm, target, tokens, hidden, dtype))
                yield Case("fused_add_rms_norm", shape, partial(fused_add, target, tokens, hidden, dtype))
            for width in INTERMEDIATE[kind]:
                shape = f"T={tokens} d={width} {DTYPE_NAMES[dtype]}"
                yield Case("silu_and_mul", shape, partial(silu, target, tokens, width, dtype))
            shape = f"T={tokens} heads=32+8 head_dim=128 {DTYPE_NAMES[dtype]}"
            yield Case("rotary_embedding", shape, partial(rotary, target, tokens, dtype))


def rms_norm(target: Target, tokens: int, hidden: int, dtype: torch.dtype) -> Work:
    nbytes = 2 * tokens * hidden * dtype.itemsize
    sets = [torch.randn(tokens, hidden, device=target.device).to(dtype) for _ in range(target.copies(nbytes))]
    outs = [torch.empty_like(x) for x in sets]
    weight = torch.ones(hidden, device=target.device, dtype=dtype)
    calls = [partial(ops.rms_norm, x, weight, 1e-5, out=out) for x, out in zip(sets, outs, strict=True)]
    peer = [partial(torch.nn.functional.rms_norm, x, (hidden,), weight, 1e-5) for x in sets]
    return Work(calls, nbytes, peers={"torch": peer})


def fused_add(target: Target, tokens: int, hidden: int, dtype: torch.dtype) -> Work:
    nbytes = 4 * tokens * hidden * dtype.itemsize
    count = target.copies(nbytes)
    sets = [torch.randn(2, tokens, hidden, device=target.device).to(dtype).unbind(0) for _ in range(count)]
    # Zero keeps the stream from growing over thousands of calls.
    weight = torch.zeros(hidden, device=target.device, dtype=dtype)
    return Work([partial(ops.fused_add_rms_norm, x, r, weight, 1e-5) for x, r in sets], nbytes)


def silu(target: Target, tokens: int, width: int, dtype: torch.dtype) -> Work:
    nbytes = 3 * tokens * width * dtype.itemsize
    sets = [
        torch.randn(tokens, 2 * width, device=target.device).to(dtype) for _ in range(target.copies(nbytes))
    ]
    outs = [torch.empty(tokens, width, device=target.device, dtype=dtype) for _ in sets]
    return Work([partial(ops.silu_and_mul, x, out=out) for x, out in zip(sets, outs, strict=True)], nbytes)


def rotary(target: Target, tokens: int, dtype: torch.dtype) -> Work:
    nbytes = 2 * tokens * 40 * 128 * dtype.itemsize
    sets = [
        torch.randn(tokens, 40, 128, device=target.device).to(dtype) for _ in range(target.copies(nbytes))
    ]
    positions = torch.arange(tokens, device=target.device)
    table = torch.randn(max(tokens, 1), 128, device=target.device)
    return Work([partial(ops.rotary_embedding, positions, x, None, 128, table) for x in sets], nbytes)
