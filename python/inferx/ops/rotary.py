"""Rotary position embedding (Su et al., "RoFormer", 2021)."""

from __future__ import annotations

from torch import Tensor

from inferx.ops._lib import is_compiling, kernels_for, register

__all__ = ["rotary_embedding"]

_rotary_embedding = register(
    "rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, int head_size, "
    "Tensor cos_sin_cache, bool is_neox) -> ()"
)


def rotary_embedding(
    positions: Tensor,
    query: Tensor,
    key: Tensor | None,
    head_size: int,
    cos_sin_cache: Tensor,
    is_neox: bool = True,
) -> None:
    """Turns query and key, in place, by the angles of their positions.

    Args:
        positions: ``[T]`` int64, rows of ``cos_sin_cache``.
        query: ``[T, Hq * head_size]`` or ``[T, Hq, head_size]``, float32, float16 or bfloat16; any strides
            with a contiguous last dimension (a slice of a fused qkv, say).
        key: the same with its own number of heads and query's dtype; None when there is none to turn.
        head_size: elements per head.
        cos_sin_cache: ``[P, rot_dim]`` float32: ``rot_dim / 2`` cosines, then as many sines.  ``rot_dim`` is
            even and at most ``head_size``; the elements of a head beyond it stay as they are.
        is_neox: True pairs element ``i`` with ``i + rot_dim / 2`` (GPT-NeoX, Hugging Face), False ``2 i``
            with ``2 i + 1`` (GPT-J, the original Llama).

    In float32 this gives the bits of ``x * cos + rotate_half(x) * sin``.

    Raises:
        IndexError: a position is not a row of ``cos_sin_cache``; nothing has been changed then.
        ValueError: a shape, dtype, device or stride is wrong, or query and key overlap.
    """
    kernel = _rotary_embedding if is_compiling() else kernels_for(query).rotary_embedding
    kernel(positions, query, key, head_size, cos_sin_cache, is_neox)
