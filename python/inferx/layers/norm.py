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

    def record(self, step: ops.StepProgram, x: ops.Columns, out: ops.Columns) -> None:
        """Of each group of ``size`` columns."""
        step.norm(x, self.weight, self.eps, out)

    def record_add(
        self, step: ops.StepProgram, x: ops.Columns, residual: ops.Columns, kinds: set[bool]
    ) -> ops.StepInput:
        """``add`` for readers of these kinds (``Linear.input_kinds``)."""
        return step.add_norm(x, residual, self.weight, self.eps, kinds)
