"""RMS norm.

Root mean square layer normalisation (Zhang and Sennrich, 2019):
``x / sqrt(mean(x^2) + eps) * weight``, without a mean to subtract.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inferx.ops._lib import is_compiling, kernels_for, register

__all__ = ["fused_add_rms_norm", "rms_norm"]

_rms_norm = register("rms_norm(Tensor(a!) out, Tensor input, Tensor weight, float eps) -> ()")
_fused_add_rms_norm = register(
    "fused_add_rms_norm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, float eps) -> ()"
)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """Normalises the rows of ``x`` and scales them by ``weight``.

    Args:
        x: ``[..., H]``, float32, float16 or bfloat16; any strides with a contiguous last dimension.
        weight: ``[H]``, contiguous; x's dtype or float32.
        eps: added to the mean of the squares; >= 0.
        out: like ``x``; may be ``x`` itself.  Allocated when None.

    Returns:
        ``out``, computed in float32 and rounded once.  A row's bits depend on that row alone, not on how
        many rows there are or how many threads work.

    Raises:
        ValueError: a shape, dtype, device or stride is wrong, or ``out`` overlaps ``x`` in part.
    """
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    (_rms_norm if is_compiling() else kernels_for(x).rms_norm)(out, x, weight, eps)
    return out


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
    """In place: ``residual += x``, then ``x = rms_norm(residual, weight, eps)``.

    Args:
        x: ``[..., H]``, float32, float16 or bfloat16; any strides with a contiguous last dimension.
        residual: like ``x``, apart from it in memory.
        weight: ``[H]``, contiguous; x's dtype or float32.
        eps: added to the mean of the squares; >= 0.

    The norm reads the residual as it was stored (rounded to its dtype), so the result equals an addition
    followed by :func:`rms_norm`, bit for bit.

    Raises:
        ValueError: a shape, dtype, device or stride is wrong, or the arguments overlap.
    """
    call = _fused_add_rms_norm if is_compiling() else kernels_for(x).fused_add_rms_norm
    call(x, residual, weight, eps)
