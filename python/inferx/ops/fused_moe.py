"""The experts of a mixture: each token's MLPs, weighted and summed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from inferx import _C
from inferx.ops._lib import check_tensor, is_compiling, kernels_for, on_device, register
from inferx.ops.experts import PackedExperts, fused_moe_packed
from inferx.ops.routing import moe_align_block_size, moe_sum

__all__ = ["fused_moe"]


def _no_cpu(*args: Any, **kwargs: Any) -> None:
    raise TypeError(
        "moe_gemm: input: expected a CUDA tensor; on the CPU fused_moe takes pack_experts's result"
    )


_moe_gemm = register(
    "moe_gemm(Tensor(a!) out, Tensor input, Tensor weight, Tensor? bias, Tensor topk_ids, "
    "Tensor? topk_weights, Tensor? sorted_token_ids, Tensor? expert_ids, Tensor? num_tokens_post_padded, "
    "int block_size, str? activation=None, float swiglu_alpha=1.702, float swiglu_limit=7.0) -> ()",
    cpu=_no_cpu,
)

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "swigluoai")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

# Up to so many pairs of token and expert, CTAs find by themselves who shares an expert: a launch less, and
# few ids to look through.
_MAX_UNSORTED = 64
_EXACT_TOKENS = 16  # the tile of the float32 kernel
_MAX_EXPERTS = 512  # that moe_align_block_size sorts by
_MAX_PAIRS = 2**30 - 1  # padded to tiles they are still counted by an int


def fused_moe(
    x: Tensor,
    w13: PackedExperts | Tensor,
    w2: PackedExperts | Tensor,
    topk_weights: Tensor,
    topk_ids: Tensor,
    *,
    activation: str = "silu",
    w13_bias: Tensor | None = None,
    w2_bias: Tensor | None = None,
    swiglu_alpha: float = 1.702,
    swiglu_limit: float = 7.0,
    out: Tensor | None = None,
) -> Tensor:
    """The MLPs of each token's experts, weighted and summed.

    ``out[t] = sum over j of topk_weights[t, j] * (w2[e] act(w13[e] x[t] + w13_bias[e]) + w2_bias[e])`` with
    ``e = topk_ids[t, j]``, summed in float32 and in order of j.  A token's bits depend on the token, its
    weights and ids only: not on the rest of the batch.

    On a device an expert's weights are read once for all of its tokens, nothing waits for the host, and
    launches depend on shapes only, so a captured CUDA graph holds for other ids.  What the activation gives,
    and each expert's weighted result, are rounded to x's type, as the sum is; sums before are float32.

    Args:
        x: [T, H], any distance between rows.  CPU: float32; device: float32, float16 or bfloat16.
        w13: [E, 2 I, H], the rows of the gates, then those of the ups.  CPU: from
            :func:`inferx.ops.pack_experts` with ``parts=2``; device: a tensor of x's type.
        w2: [E, H, I], likewise.
        topk_weights: float32 [T, k].
        topk_ids: int32 [T, k]; an expert may be there twice.  -1: not here, adds nothing.
        activation: of gate and up: silu, gelu, gelu_pytorch_tanh (``f(gate) * up``), or swigluoai, gpt-oss's
            ``(up + 1) * gate * sigmoid(alpha * gate)`` with ``gate <= limit`` and ``-limit <= up <= limit``.
        w13_bias, w2_bias: [E, 2 I] and [E, H], float32 or (device) x's type.
        swiglu_alpha, swiglu_limit: of swigluoai.
        out: [T, H] of x's type to write to, apart from the other arguments in memory.

    With 16-bit types, H and I are multiples of 8, and rows of x, w13, w2, and with k = 1 of out, begin at
    multiples of 16 bytes.  On a device ids outside of [0, E) count as -1.

    Returns:
        ``out``.

    Raises:
        TypeError: weights that are of the other backend.
        ValueError: a shape, dtype, device, stride or name that does not fit.
        IndexError: (CPU) an id below -1 or from E on.
    """
    if isinstance(w13, PackedExperts) or isinstance(w2, PackedExperts):
        return fused_moe_packed(
            x, w13, w2, topk_weights, topk_ids,  # type: ignore[arg-type]
            activation=activation, w13_bias=w13_bias, w2_bias=w2_bias,
            swiglu_alpha=swiglu_alpha, swiglu_limit=swiglu_limit, out=out,
        )  # fmt: skip
    _check(x, w13, w2, topk_weights, topk_ids, activation, w13_bias, w2_bias)
    (tokens, hidden), (experts, _, width), top_k = x.shape, w2.shape, topk_ids.shape[1]
    recorded = is_compiling()
    if not recorded:  # what is recorded is checked when it runs, by moe_gemm
        _check_strides(x, w13, w2, w13_bias, w2_bias)
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    else:
        _check_matrix("out", out, (tokens, hidden), x)
        if not recorded:
            _check_out(out, rows_of_chunks=top_k == 1 and x.dtype != torch.float32)
            others = {"x": x, "w13": w13, "w2": w2, "topk_weights": topk_weights, "topk_ids": topk_ids}
            _C.check_apart("fused_moe", "out", out, others | {"w13_bias": w13_bias, "w2_bias": w2_bias})
    if tokens == 0:
        return out
    topk_ids, topk_weights = topk_ids.contiguous(), topk_weights.contiguous()
    block_size, pairs = tokens_of_tile(tokens * top_k, experts, x.dtype), tokens * top_k
    tiles: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)
    if pairs > _MAX_UNSORTED:
        tiles = moe_align_block_size(topk_ids, block_size, experts)
    gemm: Callable[..., Any] = _moe_gemm if recorded else kernels_for(x).moe_gemm
    activated = torch.empty((pairs, width), dtype=x.dtype, device=x.device)
    gemm(
        activated, x, w13, w13_bias, topk_ids, None, *tiles, block_size,
        activation, swiglu_alpha, swiglu_limit,
    )  # fmt: skip
    if top_k == 1:
        gemm(out, activated, w2, w2_bias, topk_ids, topk_weights, *tiles, block_size)
        return out
    # In x's type: float32 would double what is written and read again, for less than the sum's own rounding.
    results = torch.empty((pairs, hidden), dtype=x.dtype, device=x.device)
    gemm(results, activated, w2, w2_bias, topk_ids, topk_weights, *tiles, block_size)
    return moe_sum(results.view(tokens, top_k, hidden), out)


def tokens_of_tile(pairs: int, experts: int, dtype: torch.dtype) -> int:
    """Pairs of one expert that a CTA of the matrix products takes at a time.

    While reading the weights is the limit, empty places of a tile cost little and a second tile of an expert
    may read them again: a tile is to hold an expert's share with a quarter to spare.
    """
    if dtype == torch.float32:
        return _EXACT_TOKENS
    size = 8
    while size < 128 and size * experts * 4 < pairs * 5:
        size *= 2
    return size


def _check(
    x: Tensor,
    w13: Any,
    w2: Any,
    topk_weights: Tensor,
    topk_ids: Tensor,
    activation: str,
    w13_bias: Tensor | None,
    w2_bias: Tensor | None,
) -> None:
    check_tensor("fused_moe", "x", x)
    check_tensor("fused_moe", "w13", w13)
    check_tensor("fused_moe", "w2", w2)
    if not on_device(x):
        raise TypeError(
            f"fused_moe: w13: expected pack_experts's PackedExperts for x on {x.device}, got a torch.Tensor"
        )
    if x.ndim != 2 or x.dtype not in _DTYPES:
        _fail("x", "float32, float16 or bfloat16 [T, H]", f"{x.dtype} {list(x.shape)}")
    if activation not in ACTIVATIONS:
        _fail("activation", ", ".join(ACTIVATIONS[:-1]) + f" or {ACTIVATIONS[-1]}", repr(activation))
    tokens, hidden = x.shape
    if w2.ndim != 3 or not 1 <= w2.shape[0] <= _MAX_EXPERTS:
        _fail("w2", f"[E, H, I] with 1 to {_MAX_EXPERTS} experts", str(list(w2.shape)))
    experts, rows, width = w2.shape
    if rows != hidden and (w13.ndim != 3 or w13.shape[2] != hidden):  # w13 sides with x: then it is w2
        _fail("x", f"[T, H] with w2's H = {rows}", str(list(x.shape)))
    _check_matrix("w13", w13, (experts, 2 * width, hidden), x)
    _check_matrix("w2", w2, (experts, hidden, width), x)
    if w13_bias is not None:
        _check_matrix("w13_bias", w13_bias, (experts, 2 * width), x, (torch.float32, x.dtype))
    if w2_bias is not None:
        _check_matrix("w2_bias", w2_bias, (experts, hidden), x, (torch.float32, x.dtype))
    check_tensor("fused_moe", "topk_ids", topk_ids)
    if topk_ids.ndim != 2 or topk_ids.shape[1] < 1:
        _fail("topk_ids", "[T, k] with k >= 1", str(list(topk_ids.shape)))
    shape = (tokens, topk_ids.shape[1])
    if tokens * shape[1] > _MAX_PAIRS:
        _fail("topk_ids", f"at most {_MAX_PAIRS} pairs of token and expert", str(list(topk_ids.shape)))
    _check_matrix("topk_ids", topk_ids, shape, x, (torch.int32,))
    _check_matrix("topk_weights", topk_weights, shape, x, (torch.float32,))


def _check_matrix(
    name: str,
    tensor: Tensor,
    shape: tuple[int, ...],
    x: Tensor,
    dtypes: tuple[torch.dtype, ...] | None = None,
) -> None:
    check_tensor("fused_moe", name, tensor)
    dtypes = dtypes or (x.dtype,)
    if tensor.shape == shape and tensor.dtype in dtypes and tensor.device == x.device:
        return
    types = " or ".join(str(dtype) for dtype in dict.fromkeys(dtypes))
    _fail(
        name,
        f"{types} {list(shape)} on {x.device}",
        f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}",
    )


def _check_strides(
    x: Tensor, w13: Tensor, w2: Tensor, w13_bias: Tensor | None, w2_bias: Tensor | None
) -> None:
    """What moe_gemm would refuse as arguments of its own."""
    # The usual tensors are done with these few looks: this runs once per layer and step.
    usual = x.is_contiguous() and w13.is_contiguous() and w2.is_contiguous()
    chunks = x.dtype != torch.float32
    if chunks:
        _, hidden, width = w2.shape
        usual = usual and not ((x.data_ptr() | w13.data_ptr() | w2.data_ptr()) % 16 or (hidden | width) % 8)
    if not usual:
        for name, tensor in (("x", x), ("w13", w13), ("w2", w2)):
            _check_rows(name, tensor, chunks)
    for name, bias in (("w13_bias", w13_bias), ("w2_bias", w2_bias)):
        if bias is not None and not bias.is_contiguous():
            _check_rows(name, bias, False)


def _check_rows(name: str, tensor: Tensor, chunks: bool) -> None:
    """Rows without gaps and, as chunks, of whole 16 bytes that begin at multiples of 16 bytes."""
    if tensor.numel() == 0:
        return
    strides = tensor.stride()
    if strides[-1] != 1 and tensor.shape[-1] > 1:
        _fail(name, "a contiguous last dimension (stride 1)", f"strides {list(strides)}")
    if not chunks:
        return
    if tensor.shape[-1] % 8:
        _fail(name, "rows of a multiple of 8 elements", str(list(tensor.shape)))
    steps = (step for size, step in zip(tensor.shape[:-1], strides, strict=False) if size > 1)
    if tensor.data_ptr() % 16 or any(step % 8 for step in steps):
        _fail(
            name,
            "rows that begin at multiples of 16 bytes",
            f"strides {list(strides)} of 2 bytes at an address of {tensor.data_ptr() % 16} modulo 16",
        )


def _check_out(out: Tensor, rows_of_chunks: bool) -> None:
    _check_rows("out", out, rows_of_chunks)
    if out.shape[0] > 1 and out.stride(0) < out.shape[1]:
        _fail("out", "rows that do not overlap", f"strides {list(out.stride())}")


def _fail(name: str, expected: str, given: str) -> None:
    raise ValueError(f"fused_moe: {name}: expected {expected}, got {given}")
