"""Embedding tables: rows of a packed or dense weight."""

from __future__ import annotations

import torch

from inferx import _C
from inferx.ops._lib import is_compiling, kernels_for, on_device, register
from inferx.ops.linear import AnyWeight, DenseWeight, PackedWeight

__all__ = ["embedding"]


def _dense_on_cpu(out: torch.Tensor, ids: torch.Tensor, table: torch.Tensor) -> None:
    """Dense weights are for devices; on the CPU torch's own gather will do."""
    out.copy_(torch.nn.functional.embedding(ids, table))


_embedding = register("embedding(Tensor(a!) out, Tensor ids, Tensor table) -> ()", cpu=_dense_on_cpu)


def embedding(ids: torch.Tensor, weight: AnyWeight, out: torch.Tensor | None = None) -> torch.Tensor:
    """Rows of the table; the table may be the very weight that the output head uses.

    Args:
        ids: int64 or int32 [T].
        weight: [N, K].
        out: [T, K], rows may be strided; float32 for a packed weight, else the weight's type.

    Returns:
        [T, K], the values of ``weight.dequantize()``.  On a device, an id outside of [0, N) gives a row of
        zeros: nobody can look at it there.

    Raises:
        IndexError: an id outside of [0, N), on the CPU; ``out`` is then untouched.
        ValueError: a shape, dtype, device or stride that does not fit.
    """
    if type(weight) is DenseWeight:
        table = weight.tensor
        if out is None:
            out = torch.empty((*ids.shape, weight.shape[1]), dtype=table.dtype, device=table.device)
        call = _embedding
        if not is_compiling():
            call = kernels_for(table).embedding if on_device(table) else _dense_on_cpu
        call(out, ids, table)
        return out
    if type(weight) is not PackedWeight:
        raise TypeError(
            f"embedding: weight: expected a PackedWeight or DenseWeight, got {type(weight).__name__}"
        )
    if out is None:
        out = torch.empty((*ids.shape, weight.shape[1]), dtype=torch.float32)
    _C.embedding(out, ids, weight.handle)
    return out
