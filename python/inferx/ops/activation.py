"""Gated activations of MLPs: ``f(x[..., :d]) * x[..., d:]``.

See Shazeer, "GLU Variants Improve Transformer", 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inferx.ops._lib import is_compiling, kernels_for, register

__all__ = ["gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul"]

_silu_and_mul = register("silu_and_mul(Tensor(a!) out, Tensor input) -> ()")
_gelu_and_mul = register("gelu_and_mul(Tensor(a!) out, Tensor input) -> ()")
_gelu_tanh_and_mul = register("gelu_tanh_and_mul(Tensor(a!) out, Tensor input) -> ()")


def _run(kernel: Callable[..., Any], x: Tensor, out: Tensor | None) -> Tensor:
    if out is None:
        # A 0-d x gets as far as the kernel's check, which says what is wrong with it.
        shape = (*x.shape[:-1], x.shape[-1] // 2) if x.dim() else ()
        out = torch.empty(shape, dtype=x.dtype, device=x.device)
    kernel(out, x)
    return out


def silu_and_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """``silu(x[..., :d]) * x[..., d:]`` with ``silu(z) = z / (1 + exp(-z))``.

    Args:
        x: ``[..., 2 d]``, float32, float16 or bfloat16; any strides with a contiguous last dimension.
        out: ``[..., d]`` of x's dtype, apart from ``x`` in memory.  Allocated when None.

    Returns:
        ``out``, computed in float32 and rounded once.

    Raises:
        ValueError: a shape, dtype, device or stride is wrong, or ``out`` overlaps ``x``.
    """
    return _run(_silu_and_mul if is_compiling() else kernels_for(x).silu_and_mul, x, out)


def gelu_and_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """``gelu(x[..., :d]) * x[..., d:]`` with ``gelu(z) = z (1 + erf(z / sqrt 2)) / 2``.

    Arguments, result and errors are those of :func:`silu_and_mul`.
    """
    return _run(_gelu_and_mul if is_compiling() else kernels_for(x).gelu_and_mul, x, out)


def gelu_tanh_and_mul(x: Tensor, out: Tensor | None = None) -> Tensor:
    """``gelu(x[..., :d]) * x[..., d:]`` with the tanh approximation of gelu.

    ``gelu(z) = z (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))) / 2`` (torch's ``approximate="tanh"``).
    Arguments, result and errors are those of :func:`silu_and_mul`.
    """
    return _run(_gelu_tanh_and_mul if is_compiling() else kernels_for(x).gelu_tanh_and_mul, x, out)
