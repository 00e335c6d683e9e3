"""Mixtures of experts on the CPU: stacked packed matrices, and the products over them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from inferx import _C
from inferx.ops._lib import check_tensor, is_compiling
from inferx.ops._weight_memory import weight_memory

__all__ = ["PackedExperts", "batched_linear", "fused_moe_packed", "pack_experts", "packed_experts_nbytes"]


class PackedExperts:
    """E weight matrices [N, K] (N output features) of one shape in the layout of the CPU kernels.

    One buffer holds them all, uninitialised at first: :meth:`pack` fills it piece by piece, so that a loader
    holds nothing but the stack and the piece that it reads.  A matrix may have several parts of N / parts
    rows each, one after the other, of types of their own (gate and up of a gated MLP).

    Args:
        shape: (E, N, K).
        dtypes: the parts' types, as for :func:`inferx.ops.pack_weight`.

    Attributes:
        shape, dtypes: as given.
        nbytes: bytes that the matrices occupy, padding included.

    Raises:
        ValueError: an unknown type, or a shape that does not fit the types.
    """

    __slots__ = ("_buffer", "dtypes", "handle", "nbytes", "shape")

    def __init__(self, shape: Sequence[int], dtypes: Sequence[str]) -> None:
        self.shape = _check_shape("PackedExperts", shape)
        self.dtypes: tuple[str, ...] = tuple(dtypes)
        self.nbytes: int = packed_experts_nbytes(self.shape, self.dtypes)
        self._buffer = weight_memory(self.nbytes)
        self.handle = _C.make_experts(self._buffer, self.dtypes, *self.shape)

    def pack(self, expert: int, part: int, data: torch.Tensor) -> None:
        """Packs one part of one expert.

        Args:
            expert, part: which; IndexError when there is none.
            data: [N / parts, K] of the part's type, or uint8 [N / parts, bytes per row], as for
                :func:`inferx.ops.pack_weight`.  Rows may be strided; it may be a view of a read-only file.
        """
        _C.pack_expert(self.handle, expert, part, data)

    def dequantize(self, expert: int) -> torch.Tensor:
        """An expert's matrix as float32 [N, K], as :meth:`inferx.ops.PackedWeight.dequantize`."""
        out = torch.empty(self.shape[1:], dtype=torch.float32, device="cpu")
        _C.dequantize_expert(out, self.handle, expert)
        return out

    def __repr__(self) -> str:
        return f"PackedExperts(shape={self.shape}, dtypes={self.dtypes}, nbytes={self.nbytes})"


def _check_shape(op: str, shape: Sequence[int]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(f"{op}: shape: expected (E, N, K), got {tuple(shape)}")
    e, n, k = shape
    return e, n, k


def packed_experts_nbytes(shape: Sequence[int], dtypes: Sequence[str]) -> int:
    """Bytes that :class:`PackedExperts` of this shape and these types take; ValueError likewise."""
    count: int = _C.packed_experts_nbytes(tuple(dtypes), *_check_shape("PackedExperts", shape))
    return count


def pack_experts(data: torch.Tensor, dtype: str, shape: Sequence[int], parts: int = 1) -> PackedExperts:
    """Packs all matrices of a stack.

    Args:
        data: [E, N, K] of the type, or uint8 [E, N, bytes per row] for a GGML block type.
        dtype: of all parts.
        shape: (E, N, K).
        parts: that the rows are cut into: 2 for gate and up.
    """
    check_tensor("pack_experts", "data", data)
    e, n, _ = _check_shape("pack_experts", shape)
    if not isinstance(parts, int) or not 1 <= parts <= max(n, 1):
        raise ValueError(f"pack_experts: parts: expected 1 to N = {n}, got {parts!r}")
    experts = PackedExperts(shape, (dtype,) * parts)
    if data.dim() != 3 or tuple(data.shape[:2]) != (e, n):
        raise ValueError(f"pack_experts: data: expected [{e}, {n}, row], got {list(data.shape)}")
    rows = n // parts
    for expert in range(e):
        for part in range(parts):
            experts.pack(expert, part, data[expert, part * rows : (part + 1) * rows])
    return experts


def fused_moe_packed(
    x: torch.Tensor,
    w13: PackedExperts,
    w2: PackedExperts,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    *,
    activation: str = "silu",
    w13_bias: torch.Tensor | None = None,
    w2_bias: torch.Tensor | None = None,
    swiglu_alpha: float = 1.702,
    swiglu_limit: float = 7.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """:func:`inferx.ops.fused_moe` over packed experts, in float32.

    A token's result has the same bits whatever other tokens there are and however many threads: those of
    :func:`inferx.ops.linear` with each expert's matrices and of the activation, weighted and summed in order
    of k.

    Args:
        x: float32 [T, H], the last dimension contiguous.
        w13: [E, 2 I, H] of two parts, gate and up.
        w2: [E, H, I].
        topk_weights: float32 [T, k].
        topk_ids: int32 [T, k]; -1 adds nothing.  Neither's strides matter: what is not contiguous is copied.
        activation: silu, gelu, gelu_pytorch_tanh or swigluoai.
        w13_bias, w2_bias: float32 [E, 2 I] and [E, H].
        swiglu_alpha, swiglu_limit: of swigluoai.
        out: float32 [T, H]; it may overlap no other argument.

    Raises:
        ValueError: a shape, dtype, device, stride or name that does not fit.
        IndexError: an id below -1 or from E on.
    """
    for name, weight in (("w13", w13), ("w2", w2)):
        if type(weight) is not PackedExperts:
            raise TypeError(f"fused_moe: {name}: expected PackedExperts, got {type(weight).__name__}")
    if out is None:
        out = torch.empty(x.shape, dtype=torch.float32, device="cpu")
    _C.fused_moe_packed(
        out,
        x,
        w13.handle,
        w2.handle,
        _without_gaps("topk_weights", topk_weights, out),
        _without_gaps("topk_ids", topk_ids, out),
        activation,
        w13_bias,
        w2_bias,
        swiglu_alpha,
        swiglu_limit,
    )
    return out


def _without_gaps(name: str, tensor: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    check_tensor("fused_moe", name, tensor)
    if tensor.is_contiguous():
        return tensor
    _C.check_apart("fused_moe", "out", out, {name: tensor})  # the op itself sees the copy only
    return tensor.contiguous()


def batched_linear(
    x: torch.Tensor, weight: PackedExperts | torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``out[t, b] = weight[b] x[t, b]``.

    Over packed matrices in float32, with the bits of :func:`inferx.ops.linear`; over a plain tensor in its
    type, by torch.

    Args:
        x: float32 (plain: the weight's type) [T, B, K], the last dimension contiguous.
        weight: [B, N, K], packed in one part or a plain tensor.
        out: [T, B, N] to write to, apart from the other arguments in memory.

    Raises:
        ValueError: a shape, dtype, device or stride that does not fit.
    """
    if type(weight) is PackedExperts:
        if out is None:
            out = torch.empty(*x.shape[:-1], weight.shape[1], dtype=torch.float32, device="cpu")
        _C.batched_linear(out, x, weight.handle)
        return out
    if not isinstance(weight, torch.Tensor):
        raise TypeError(
            f"batched_linear: weight: expected PackedExperts or a torch.Tensor, got {type(weight).__name__}"
        )
    return _dense_batched_linear(x, weight, out)


def _dense_batched_linear(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    check_tensor("batched_linear", "x", x)
    if weight.dim() != 3:
        raise ValueError(f"batched_linear: weight: expected [B, N, K], got {list(weight.shape)}")
    b, n, k = weight.shape
    if x.dim() != 3 or x.shape[1:] != (b, k) or x.dtype != weight.dtype or x.device != weight.device:
        raise ValueError(
            f"batched_linear: x: expected {weight.dtype} [T, {b}, {k}] on {weight.device}, "
            f"got {x.dtype} {list(x.shape)} on {x.device}"
        )
    expected = (x.shape[0], b, n)
    if out is None:
        out = torch.empty(expected, dtype=weight.dtype, device=weight.device)
    else:
        check_tensor("batched_linear", "out", out)
        # torch would resize it.
        if out.shape != expected or out.dtype != weight.dtype or out.device != weight.device:
            raise ValueError(
                f"batched_linear: out: expected {weight.dtype} {list(expected)} on {weight.device}, "
                f"got {out.dtype} {list(out.shape)} on {out.device}"
            )
        if not is_compiling():
            _C.check_apart("batched_linear", "out", out, {"x": x, "weight": weight})
    torch.bmm(x.transpose(0, 1), weight.transpose(1, 2), out=out.transpose(0, 1))
    return out
