"""Embedding tables: rows of a packed weight."""

from __future__ import annotations

import torch

from inferx import _C
from inferx.ops.linear import PackedWeight

__all__ = ["embedding"]


def embedding(ids: torch.Tensor, weight: PackedWeight, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rows of the table in float32; the table may be the very weight that the output head uses.

    Args:
        ids: int64 or int32 [T].
        weight: [N, K].
        out: float32 [T, K], rows may be strided.

    Returns:
        float32 [T, K], the values of ``weight.dequantize()``.

    Raises:
        IndexError: an id outside of [0, N); ``out`` is then untouched.
        ValueError: a shape, dtype, device or stride that does not fit.
    """
    if type(weight) is not PackedWeight:
        raise TypeError(f"embedding: weight: expected a PackedWeight, got {type(weight).__name__}")
    if out is None:
        out = torch.empty((*ids.shape, weight.shape[1]), dtype=torch.float32)
    _C.embedding(out, ids, weight.handle)
    return out
