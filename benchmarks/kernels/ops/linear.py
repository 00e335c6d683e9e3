"""Linear layers over packed weights: the CPU's (on a GPU dense products are torch's)."""

from __future__ import annotations

from functools import partial

import torch
from benchmarks.kernels.case import Case, Cases, Target, Work

from inferx import ops

BLOCK_BYTES = {"Q4_0": (32, 18), "Q4_1": (32, 20), "Q8_0": (32, 34), "Q4_K": (256, 144), "Q6_K": (256, 210)}
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Of SmolLM2-135M: attention output, gate and up, down, head.
SHAPES = ((576, 576), (1536, 576), (576, 1536), (49152, 576))


def cases(target: Target) -> Cases:
    if target.is_cuda:
        return
    for dtype in ("Q4_1",) if target.quick else ("Q4_1", "Q8_0", "Q4_K", "BF16", "F32"):
        for n, k in SHAPES:
            if dtype in BLOCK_BYTES and k % BLOCK_BYTES[dtype][0]:
                continue
            for rows in target.pick([1, 4, 16, 64, 512]):
                yield Case(
                    "linear", f"{dtype} N={n} K={k} M={rows}", partial(linear, target, dtype, n, k, rows)
                )


def random_weight(dtype: str, n: int, k: int) -> ops.PackedWeight:
    """A packed weight of random bits; speed does not depend on the values."""
    if dtype in FLOATS:
        return ops.pack_weight(torch.randn(n, k).to(FLOATS[dtype]), dtype, (n, k))
    block, size = BLOCK_BYTES[dtype]
    data = torch.randint(0, 64, (n, k // block * size), dtype=torch.uint8)
    return ops.pack_weight(data, dtype, (n, k))


def linear(target: Target, dtype: str, n: int, k: int, rows: int) -> Work:
    first = random_weight(dtype, n, k)
    copies = target.copies(first.nbytes) if rows <= 16 else 1
    weights = [first, *(random_weight(dtype, n, k) for _ in range(copies - 1))]
    x, out = torch.randn(rows, k), torch.empty(rows, n)
    calls = [partial(ops.linear, x, weight, None, out) for weight in weights]
    dense = torch.randn(n, k)
    return Work(
        calls,
        first.nbytes,
        2.0 * rows * n * k,
        peers={"torch f32": [partial(torch.mm, x, dense.t(), out=out)]},
    )
