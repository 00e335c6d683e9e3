"""Linear layers over packed weights (CPU kernels) and dense ones (torch's matrix products, on a device)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inferx import _C
from inferx.ops._weight_memory import weight_memory

__all__ = ["AnyWeight", "DenseWeight", "PackedWeight", "linear", "pack_weight", "packed_nbytes"]


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


class DenseWeight:
    """A weight matrix [N, K] as a plain tensor, for devices whose matrix products are torch's.

    Attributes:
        tensor: [N, K], float32, float16 or bfloat16, contiguous.
        shape, dtype, nbytes: as for :class:`PackedWeight`.
    """

    __slots__ = ("dtype", "nbytes", "shape", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.dim() != 2 or tensor.dtype not in _DENSE_TYPES or not tensor.is_contiguous():
            raise ValueError(
                "DenseWeight: tensor: expected a contiguous float32, float16 or bfloat16 [N, K], got "
                f"{tensor.dtype} {list(tensor.shape)} with strides {list(tensor.stride())}"
            )
        self.tensor = tensor
        self.shape: tuple[int, int] = (tensor.shape[0], tensor.shape[1])
        self.dtype: str = _DENSE_TYPES[tensor.dtype]
        self.nbytes: int = tensor.nbytes

    def dequantize(self) -> torch.Tensor:
        """The matrix as float32 [N, K]."""
        return self.tensor.float()

    def __repr__(self) -> str:
        return f"DenseWeight(shape={self.shape}, dtype={self.dtype!r}, device={str(self.tensor.device)!r})"


AnyWeight = PackedWeight | DenseWeight
_DENSE_TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def pack_weight(
    data: torch.Tensor, dtype: str, shape: Sequence[int], *, halves_alternate: bool = False
) -> PackedWeight:
    """Repacks a weight matrix for :func:`linear` and :func:`inferx.ops.embedding`.

    Holds ``data`` and the packed copy at the same time, and nothing more.

    Args:
        data: for F32, F16 and BF16 a tensor [N, K] of that type; for a GGML block type uint8 [N, bytes per
            row].  Rows may be strided; it may be a view of a read-only file.
        dtype: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K or MXFP4.
        shape: (N, K), any sizes for the float types, K a multiple of the block (32, or 256 for the K types)
            for the others.
        halves_alternate: lay tiles of the first and the second half of the rows (gate and up) alternately, N
            a multiple of 64: an op that needs both together reads one stream.  No result changes.

    Raises:
        ValueError: an unknown type, or data that does not fit type and shape.
    """
    if len(shape) != 2:
        raise ValueError(f"pack_weight: shape: expected (N, K), got {tuple(shape)}")
    n, k = shape
    nbytes = _C.packed_nbytes(dtype, n, k)
    buffer = weight_memory(nbytes)
    return PackedWeight(_C.pack_weight(buffer, data, dtype, n, k, halves_alternate), buffer)


def packed_nbytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes that :func:`pack_weight` gives a matrix of this type and shape (N, K); ValueError likewise."""
    count: int = _C.packed_nbytes(dtype, *shape)
    return count


def linear(
    x: torch.Tensor,
    weight: AnyWeight,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    *,
    int8: bool = False,
) -> torch.Tensor:
    """x W^T + bias.

    Over a packed weight, in float32: every output element is summed over K in one fixed order, so a row's
    result has the same bits whatever the other rows, the number of rows and the number of threads.  (They
    may differ between instruction sets.)  Over a dense weight, in its type, by torch: bits may depend on
    the number of rows.

    With ``int8`` each 32 neighbouring elements of a row of ``x`` are first rounded to multiples of their
    largest magnitude / 127, and products with the weight's codes are summed as exact integers, scale by
    scale: two to four times as fast, and a relative error of about half a percent per element of ``x``.
    Non-finite inputs give non-finite results.

    Args:
        x: float32 (dense: the weight's type) [..., K], the last dimension contiguous, rows at one distance.
        weight: [N, K].
        bias: float32 (dense: the weight's type) [N], added last.
        out: [..., N] to write to, for example a range of columns of a wider tensor; it may not overlap
            ``x``.
        int8: quantise ``x``; for packed weights of block-quantised types.

    Returns:
        [..., N] of x's type, or ``out``.

    Raises:
        ValueError: a shape, dtype, device or stride that does not fit, or ``int8`` with a float weight.
    """
    if type(weight) is DenseWeight:
        if int8:
            raise ValueError("linear: int8: expected False with a DenseWeight, got True")
        return _dense_linear(x, weight.tensor, bias, out)
    if type(weight) is not PackedWeight:
        raise TypeError(
            f"linear: weight: expected a PackedWeight or DenseWeight, got {type(weight).__name__}"
        )
    if out is None:
        out = torch.empty(*x.shape[:-1], weight.shape[0], dtype=torch.float32)
    _C.linear(out, x, weight.handle, bias, int8)
    return out


def _dense_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor | None
) -> torch.Tensor:
    if x.dtype != weight.dtype or x.device != weight.device or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"linear: x: expected {weight.dtype} [..., {weight.shape[1]}] on {weight.device}, "
            f"got {x.dtype} {list(x.shape)} on {x.device}"
        )
    if out is None:
        return torch.nn.functional.linear(x, weight, bias)
    expected = (*x.shape[:-1], weight.shape[0])
    # torch would resize it.
    if out.shape != expected or out.dtype != weight.dtype or out.device != weight.device:
        raise ValueError(
            f"linear: out: expected {weight.dtype} {list(expected)} on {weight.device}, "
            f"got {out.dtype} {list(out.shape)} on {out.device}"
        )
    rows, columns = x.reshape(-1, x.shape[-1]), out.view(-1, weight.shape[0])
    if bias is None:
        torch.mm(rows, weight.t(), out=columns)
    else:
        torch.addmm(bias, rows, weight.t(), out=columns)
    return out
