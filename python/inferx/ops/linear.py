"""Linear layers over packed weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inferx import _C

__all__ = ["PackedWeight", "linear", "pack_weight", "packed_nbytes"]

_ALIGNMENT = 64  # bytes: a cache line, and the widest vector


class PackedWeight:
    """A weight matrix [N, K] (N output features) in the layout of the CPU kernels.

    Made by :func:`pack_weight`.  Block-quantised types stay quantised: the packed size is the checkpoint's.

    Attributes:
        shape: (N, K).
        dtype: the type it was packed from, by its GGML name ("F32", "BF16", "Q4_K", ...).
        nbytes: bytes that it occupies, padding included.
    """

    __slots__ = ("_buffer", "dtype", "handle", "nbytes", "shape")

    def __init__(self, handle: _C.WeightHandle, buffer: torch.Tensor) -> None:
        self.handle = handle
        self._buffer = buffer
        self.shape: tuple[int, int] = handle.shape
        self.dtype: str = handle.dtype
        self.nbytes: int = handle.nbytes

    def dequantize(self) -> torch.Tensor:
        """The matrix as float32 [N, K], bit for bit what GGML's reference dequantisation gives; 16-bit
        floats are widened exactly."""
        out = torch.empty(self.shape, dtype=torch.float32)
        _C.dequantize(out, self.handle)
        return out

    def __repr__(self) -> str:
        return f"PackedWeight(shape={self.shape}, dtype={self.dtype!r}, nbytes={self.nbytes})"


def pack_weight(data: torch.Tensor, dtype: str, shape: Sequence[int]) -> PackedWeight:
    """Repacks a weight matrix for :func:`linear` and :func:`inferx.ops.embedding`.

    Holds ``data`` and the packed copy at the same time, and nothing more.

    Args:
        data: for F32, F16 and BF16 a tensor [N, K] of that type; for a GGML block type uint8 [N, bytes per
            row].  Rows may be strided; it may be a view of a read-only file.
        dtype: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K.
        shape: (N, K), any sizes for the float types, K a multiple of the block (32, or 256 for the K types)
            for the others.

    Raises:
        ValueError: an unknown type, or data that does not fit type and shape.
    """
    if len(shape) != 2:
        raise ValueError(f"pack_weight: shape: expected (N, K), got {tuple(shape)}")
    n, k = shape
    nbytes = _C.packed_nbytes(dtype, n, k)
    memory = torch.empty(nbytes + _ALIGNMENT, dtype=torch.uint8)
    start = -memory.data_ptr() % _ALIGNMENT
    buffer = memory[start : start + nbytes]
    return PackedWeight(_C.pack_weight(buffer, data, dtype, n, k), buffer)


def packed_nbytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes that :func:`pack_weight` gives a matrix of this type and shape (N, K); ValueError likewise."""
    count: int = _C.packed_nbytes(dtype, *shape)
    return count


def linear(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """x W^T + bias in float32.

    Every output element is summed over K in one fixed order, so a row's result has the same bits whatever
    the other rows, the number of rows and the number of threads.  (They may differ between instruction
    sets.)

    Args:
        x: float32 [..., K], the last dimension contiguous, rows at one distance.
        weight: [N, K].
        bias: float32 [N], added last.
        out: float32 [..., N] to write to, for example a range of columns of a wider tensor; it may not
            overlap ``x``.

    Returns:
        float32 [..., N], or ``out``.

    Raises:
        ValueError: a shape, dtype, device or stride that does not fit.
    """
    if type(weight) is not PackedWeight:
        raise TypeError(f"linear: weight: expected a PackedWeight, got {type(weight).__name__}")
    if out is None:
        out = torch.empty(*x.shape[:-1], weight.shape[0], dtype=torch.float32)
    _C.linear(out, x, weight.handle, bias)
    return out
