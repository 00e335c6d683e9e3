"""Embedding tables: rows of a packed or dense weight."""

from __future__ import annotations

import torch

from inferx import _C
from inferx.ops._lib import check_tensor, is_compiling, kernels_for, on_device, register
from inferx.ops.linear import AnyWeight, DenseWeight, PackedWeight

__all__ = ["embedding"]


def _may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the ranges of memory that two tensors span meet."""

    def span(t: torch.Tensor) -> tuple[int, int]:
        last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
        return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()

    if a.numel() == 0 or b.numel() == 0:
        return False
    (a_begin, a_end), (b_begin, b_end) = span(a), span(b)
    return a_begin < b_end and b_begin < a_end


def _dense_on_cpu(out: torch.Tensor, ids: torch.Tensor, table: torch.Tensor) -> None:
    """Dense weights are for devices; on the CPU torch's own gather will do."""

    def fail(name: str, expected: str, given: object) -> None:
        raise ValueError(f"embedding: {name}: expected {expected}, got {given}")

    rows, columns = table.shape
    for name, tensor in (("ids", ids), ("out", out)):
        if tensor.device != table.device:
            fail(name, f"device {table.device} as table", tensor.device)
    if ids.dtype not in (torch.int64, torch.int32):
        fail("ids", "dtype int64 or int32", ids.dtype)
    if ids.dim() != 1:
        fail("ids", "shape [T]", list(ids.shape))
    if out.dtype != table.dtype:
        fail("out", f"dtype {table.dtype} as table", out.dtype)
    if out.shape != (ids.shape[0], columns):
        fail("out", f"shape [{ids.shape[0]}, {columns}]", list(out.shape))
    if (out.stride(0) < columns and out.shape[0] > 1) or (out.stride(1) != 1 and columns > 1):
        fail("out", "rows that are contiguous and apart", f"strides {list(out.stride())}")
    for name, tensor in (("table", table), ("ids", ids)):
        if _may_overlap(out, tensor):
            fail("out", f"memory apart from that of {name}", "an overlap")
    outside = ids[(ids < 0) | (ids >= rows)]
    if outside.numel():
        raise IndexError(f"embedding: ids: expected 0 <= id < {rows}, got {int(outside[0])}")
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
    check_tensor("embedding", "ids", ids)
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
