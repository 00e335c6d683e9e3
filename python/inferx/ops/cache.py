"""Writing into the paged KV cache, and copying its blocks."""

from __future__ import annotations

from torch import Tensor

from inferx import _C
from inferx.ops._lib import is_compiling, kernels_for, register

__all__ = ["copy_blocks", "reshape_and_cache_flash", "rope_and_cache"]

_reshape_and_cache_flash = register(
    "reshape_and_cache_flash(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping, Tensor? k_scale=None, Tensor? v_scale=None) -> ()"
)
_rope_and_cache = register(
    "rope_and_cache(Tensor positions, Tensor(a!) query, Tensor(b!) key, Tensor value, Tensor cos_sin_cache, "
    "bool is_neox, Tensor(c!) key_cache, Tensor(d!) value_cache, Tensor slot_mapping, Tensor? k_scale=None, "
    "Tensor? v_scale=None) -> ()"
)
_copy_blocks = register(
    "copy_blocks(Tensor(a!)[] key_caches, Tensor(b!)[] value_caches, Tensor block_mapping) -> ()"
)


def reshape_and_cache_flash(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Writes the keys and values of T tokens into their slots of the paged cache, in place.

    Args:
        key, value: ``[T, num_kv_heads, head_dim]``, float32, float16 or bfloat16; any strides with a
            contiguous last dimension, so slices of a fused qkv do.
        key_cache, value_cache: ``[num_blocks, block_size, num_kv_heads, head_dim]``, float32, float16,
            bfloat16 (rounded to nearest even) or float8_e4m3fn; any strides with a contiguous last dimension.
        slot_mapping: int64 ``[T]``, block * block_size + offset of each token, -1 to skip it.  Two tokens
            with one slot leave either's row, or a mix, there.
        k_scale, v_scale: for float8 caches: float32, one element or ``[num_kv_heads]``; what is stored is
            ``value / scale``, saturated at +-448 (NaN stays NaN).  None is a scale of 1.

    On a GPU the slots cannot be looked at: those out of range are skipped.

    Raises:
        ValueError: a shape, dtype, device, stride or slot is wrong.  Nothing has been written then.
    """
    call = _reshape_and_cache_flash if is_compiling() else kernels_for(key).reshape_and_cache_flash
    call(key, value, key_cache, value_cache, slot_mapping, k_scale, v_scale)


def rope_and_cache(
    positions: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cos_sin_cache: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    is_neox: bool = True,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Turns query and key by the angles of their positions and writes key and value into the paged cache.

    Equal, bit for bit, to :func:`rotary_embedding` of query and key (in place) followed by
    :func:`reshape_and_cache_flash`; on a GPU it is one launch.

    Args:
        positions: int64 ``[T]``, rows of ``cos_sin_cache``.
        query: ``[T, Hq * head_dim]`` or ``[T, Hq, head_dim]``, float32, float16 or bfloat16; any strides with
            a contiguous last dimension (slices of a fused qkv do, here and below).
        key, value: ``[T, Hk * head_dim]`` or ``[T, Hk, head_dim]``, of query's dtype.
        cos_sin_cache: float32 ``[P, rot_dim]``: ``rot_dim / 2`` cosines, then as many sines; ``rot_dim`` is
            even and at most ``head_dim``.
        key_cache, value_cache: ``[num_blocks, block_size, Hk, head_dim]``, as for
            :func:`reshape_and_cache_flash`, like ``slot_mapping``, ``k_scale`` and ``v_scale``.
        is_neox: True pairs element ``i`` with ``i + rot_dim / 2``, False ``2 i`` with ``2 i + 1``.

    On a GPU neither positions nor slots can be looked at: a token whose position is no row of
    ``cos_sin_cache`` is not turned, one whose slot is out of range is not stored.

    Raises:
        IndexError: a position is not a row of ``cos_sin_cache``; nothing has been changed then.
        ValueError: a shape, dtype, device, stride or slot is wrong, or tensors overlap; likewise.
    """
    call = _rope_and_cache if is_compiling() else kernels_for(query).rope_and_cache
    call(
        positions, query, key, value, cos_sin_cache, is_neox,
        key_cache, value_cache, slot_mapping, k_scale, v_scale,
    )  # fmt: skip


def copy_blocks(key_caches: list[Tensor], value_caches: list[Tensor], block_mapping: Tensor) -> None:
    """Copies whole blocks within every cache, in place: copy on write for forks and partly matched prefixes.

    Args:
        key_caches: one tensor per layer, ``[num_blocks, ...]``, any dtype.  A block is one run of memory or
            evenly spaced runs of it; the rest of the strides is free.
        value_caches: likewise, as many as ``key_caches``.
        block_mapping: ``[n, 2]`` int64, contiguous: (source, destination) pairs.  A source may feed several
            destinations; a destination occurs once and is no source, because the pairs are copied in any
            order.  On the CPU or on the caches' device.

    On a GPU this is one launch for all layers and pairs.  A mapping on the CPU is checked and moved there;
    one that is on the GPU already cannot be looked at, and pairs out of range are skipped.

    Raises:
        IndexError: a block number is out of range; nothing has been copied then.
        ValueError: a shape, dtype, device or stride is wrong, or the pairs depend on their order.
    """
    if is_compiling():
        _copy_blocks(key_caches, value_caches, block_mapping)
        return
    if key_caches and key_caches[0].is_cuda and not block_mapping.is_cuda:
        _C.check_block_mapping(block_mapping, min(len(cache) for cache in (*key_caches, *value_caches)))
        block_mapping = block_mapping.to(key_caches[0].device)
    kernels_for(key_caches[0] if key_caches else None).copy_blocks(key_caches, value_caches, block_mapping)
