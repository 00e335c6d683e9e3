"""RMSNorm over inferx.ops."""

from __future__ import annotations

import torch

from inferx import ops


class RMSNorm:
    """x / rms(x) * weight over the last dimension.

    weight: float32 [size], set when the model is loaded.
    """

    __slots__ = ("eps", "weight")

    weight: torch.Tensor

    def __init__(self, eps: float) -> None:
        self.eps = eps

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``out`` may be ``x`` itself."""
        return ops.rms_norm(x, self.weight, self.eps, out=out)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> None:
        """In place: residual += x, then x = norm(residual)."""
        ops.fused_add_rms_norm(x, residual, self.weight, self.eps)
