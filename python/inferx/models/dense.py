"""Tensors as stored in a checkpoint, in the type and on the device of the activations."""

from __future__ import annotations

import torch

from inferx import ops
from inferx.errors import LoadError
from inferx.loader.checkpoint import RawTensor, TensorInfo

# Values converted at a time: what the host holds beside the file's own pages is some copies of this.
PIECE = 1 << 24


def fill(target: torch.Tensor, raw: RawTensor) -> None:
    """target [N, K] = the values of ``raw``, dequantised where it is quantised.

    LoadError when a value does not fit the target's type.
    """
    rows = max(1, PIECE // max(1, target.shape[1]))
    for start in range(0, target.shape[0], rows):
        piece = target[start : start + rows]
        data = raw.data[start : start + rows]
        if raw.info.quantised:
            data = dequantized(data, raw.info, tuple(piece.shape))
        piece.copy_(converted(data, target.dtype, raw.info))


def converted(data: torch.Tensor, dtype: torch.dtype, info: TensorInfo) -> torch.Tensor:
    """``data`` (of a tensor ``info``, or part of it) in ``dtype``; LoadError when finite values overflow."""
    if data.dtype == dtype:
        return data
    result = data.to(dtype)
    overflowed = int((data.isfinite() & ~result.isfinite()).sum())
    if overflowed:
        largest = data.float().abs().max()
        raise LoadError(
            f"{info.file}: tensor {info.name}: {overflowed} of {result.numel()} values are beyond "
            f"{str(dtype).removeprefix('torch.')}'s range (largest {largest:.4g}); "
            "use dtype bfloat16 or float32"
        )
    return result


def dequantized(data: torch.Tensor, info: TensorInfo, shape: tuple[int, ...]) -> torch.Tensor:
    """float32 ``shape`` of a quantised tensor ``info``'s rows ``data``."""
    try:
        return ops.pack_weight(data, info.dtype, shape).dequantize()
    except ValueError as error:
        raise LoadError(f"{info.file}: tensor {info.name}: {error}") from error
