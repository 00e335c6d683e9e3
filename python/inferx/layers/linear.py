"""Linear layers over packed (possibly quantised) or dense weights."""

from __future__ import annotations

import torch

from inferx import ops
from inferx.ops import AnyWeight


class Linear:
    """y = x W^T + b.  weight [out, in] and bias ([out] or None) are set when the model is loaded.

    The bias is float32 beside a packed weight and of the weight's type beside a dense one.  int8: x is
    quantised first (see ``ops.linear``).
    """

    __slots__ = ("bias", "int8", "weight")

    weight: AnyWeight
    bias: torch.Tensor | None

    def __init__(self) -> None:
        self.bias = None
        self.int8 = False

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """x: [T, in] -> [T, out]."""
        return ops.linear(x, self.weight, self.bias, out=out, int8=self.int8)

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    @property
    def input_kinds(self) -> set[bool]:
        """Of inputs that it reads: True for int8 codes, False for floats."""
        return {self.int8}

    def record(self, step: ops.StepProgram, x: ops.StepInput, out: ops.Columns) -> None:
        assert isinstance(self.weight, ops.PackedWeight)
        step.linear(x, self.weight, self.bias, self.int8, out)


class MergedLinear:
    """Several linear layers of one input, each writing its columns of one output.

    Used where the pieces of a QKV or gate/up projection are stored in different types; pieces of one type are
    concatenated at load and are a single ``Linear``.
    """

    __slots__ = ("pieces", "sizes")

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.pieces = [Linear() for _ in sizes]

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """x: [T, in] -> [T, sum(sizes)]."""
        if out is None:
            out = x.new_empty(x.shape[0], sum(self.sizes))
        for piece, columns in zip(self.pieces, out.split(self.sizes, dim=1), strict=True):
            piece(x, columns)
        return out

    @property
    def out_features(self) -> int:
        return sum(self.sizes)

    @property
    def input_kinds(self) -> set[bool]:
        return {piece.int8 for piece in self.pieces}

    def record(self, step: ops.StepProgram, x: ops.StepInput, out: ops.Columns) -> None:
        for piece, columns in zip(self.pieces, out.split(self.sizes), strict=True):
            piece.record(step, x, columns)


AnyLinear = Linear | MergedLinear
