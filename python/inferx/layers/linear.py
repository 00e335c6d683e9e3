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


AnyLinear = Linear | MergedLinear
