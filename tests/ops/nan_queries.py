"""A query that is not a number: its row is NaN, so that the request with it can be found, and no other is."""

from __future__ import annotations

from collections.abc import Callable

import torch

from inferx import ops

HEADS, BLOCK = 2, 8


def check_nan_query(
    put: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, queries: int, keys: int, *, latent: bool
) -> None:
    """put: copies to where the op runs."""
    dim, blocks = 80 if latent else 64, -(-keys // BLOCK)
    query = torch.randn(queries, HEADS, dim).to(dtype)
    row = queries // 2
    query[row, 0] = torch.nan
    lists = (
        put(torch.arange(blocks, dtype=torch.int32)[None]),
        put(torch.tensor([0, queries], dtype=torch.int32)),
        put(torch.tensor([keys], dtype=torch.int32)),
    )
    if latent:
        cache = put(torch.randn(blocks, BLOCK, dim).to(dtype))
        out = ops.mla_attention(put(query), cache, *lists, 0.1, value_dim=64)
    else:
        shape = (blocks, BLOCK, 1, dim)
        caches = [put(torch.randn(shape).to(dtype)) for _ in range(2)]
        out = ops.paged_attention(put(query), *caches, *lists, 0.1)
    expected = torch.zeros(queries, HEADS, dtype=torch.bool)
    expected[row, 0] = True
    assert torch.equal(out.isnan().cpu(), expected[..., None].expand(out.shape))
