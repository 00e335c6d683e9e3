"""Writing into the paged KV cache, and moving its blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from inferx import _C
from inferx.ops._lib import is_compiling, kernels_for, register

__all__ = [
    "copy_blocks",
    "gather_blocks",
    "reshape_and_cache_flash",
    "rope_and_cache",
    "scatter_blocks",
    "swap_blocks",
]

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
_swap_blocks = register("swap_blocks(Tensor src, Tensor(a!) dst, Tensor block_mapping) -> ()")
_gather_blocks = register("gather_blocks(Tensor(a!) out, Tensor[] caches, Tensor block_ids) -> ()")
_scatter_blocks = register("scatter_blocks(Tensor buffer, Tensor(a!)[] caches, Tensor block_ids) -> ()")


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
        value_caches: likewise, as many as ``key_caches``; none where a layer has one cache for both.
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


def swap_blocks(src: Tensor, dst: Tensor, block_mapping: Tensor) -> None:
    """Copies whole blocks from one tensor into another, usually between a GPU and host memory.

    Args:
        src: ``[num_src_blocks, *block]``, any dtype, any strides with a contiguous last dimension (a block
            may have at most three dimensions, once those that lie evenly in both tensors are merged).
        dst: ``[num_dst_blocks, *block]``, likewise, apart from ``src`` in memory.  Either may be on a GPU or
            on the CPU; two GPUs are not supported.
        block_mapping: int64 ``[n, 2]``, contiguous, on the CPU: (block of src, block of dst) pairs.  A
            destination occurs once.

    Between a GPU and the host this runs on the GPU's current stream: by its copy engines, one copy for each
    run of consecutive pairs, or, for small blocks scattered over pinned memory, by one kernel.  With pinned
    host memory the call does not wait: keep that memory, and leave it alone, until the stream has got there.
    With pageable memory the copies may block.

    Raises:
        IndexError: a block number is out of range; nothing has been copied then.
        ValueError: a shape, dtype, device or stride is wrong, or a destination occurs twice; likewise.
    """
    call = _swap_blocks if is_compiling() else kernels_for(src if src.is_cuda else dst).swap_blocks
    call(src, dst, block_mapping)


def gather_blocks(caches: list[Tensor], block_ids: Tensor, out: Tensor | None = None) -> Tensor:
    """Copies blocks of all caches into one contiguous buffer, to be sent to another machine, say.

    Args:
        caches: tensors ``[num_blocks, *block]`` of one shape and dtype, any strides with a contiguous last
            dimension, ``block`` of at most three dimensions once those that lie evenly are merged; usually
            key and value cache of each layer in turn.
        block_ids: int64 ``[n]``, contiguous; -1 stands for no block.  On the CPU or on the caches' device.
        out: contiguous ``[len(caches), n, *block]``, apart from the caches in memory.  Allocated when None.

    Returns:
        ``out``: ``out[c, i]`` is ``caches[c][block_ids[i]]``, dense whatever the strides of the caches, so
        that the receiver's may differ; zeros where there is no block.  With the caches of L layers as
        ``[k0, v0, k1, v1, ...]``, ``out.view(L, 2, n, *block)`` is each layer's part in one piece.

    On a GPU this is one launch for all caches, if their strides are alike.  Ids on the CPU are checked (and
    moved there); ids on the GPU cannot be looked at, and those out of range count as -1.

    Raises:
        IndexError: a block id is out of range.
        ValueError: a shape, dtype, device or stride is wrong, or there is no cache.
    """
    if not caches:
        raise ValueError("gather_blocks: caches: expected at least one tensor, got none")
    block_ids = _ids_for("gather_blocks", caches, block_ids, once=False)
    if out is None:
        shape = (len(caches), block_ids.shape[0], *caches[0].shape[1:])
        out = torch.empty(shape, dtype=caches[0].dtype, device=caches[0].device)
    call = _gather_blocks if is_compiling() else kernels_for(caches[0]).gather_blocks
    call(out, caches, block_ids)
    return out


def scatter_blocks(buffer: Tensor, caches: list[Tensor], block_ids: Tensor) -> None:
    """Copies the blocks of a buffer that :func:`gather_blocks` filled into caches, in place.

    Args:
        buffer: contiguous ``[len(caches), n, *block]``; see :func:`gather_blocks`.
        caches: tensors ``[num_blocks, *block]`` of one shape and dtype, any strides with a contiguous last
            dimension; need not be laid out like those that the buffer comes from.
        block_ids: int64 ``[n]``, contiguous: where ``buffer[:, i]`` goes; -1 skips it.  A block occurs once.
            On the CPU or on the caches' device.

    On a GPU, ids out of range count as -1 where they cannot be looked at.

    Raises:
        IndexError: a block id is out of range; nothing has been written then.
        ValueError: a shape, dtype, device or stride is wrong, or a block occurs twice; likewise.
    """
    block_ids = _ids_for("scatter_blocks", caches, block_ids, once=True)
    call = _scatter_blocks if is_compiling() else kernels_for(caches[0] if caches else None).scatter_blocks
    call(buffer, caches, block_ids)


def _ids_for(op: str, caches: list[Tensor], block_ids: Tensor, *, once: bool) -> Tensor:
    """``block_ids`` on the caches' device, checked where they come from the CPU."""
    if is_compiling() or not caches or not caches[0].is_cuda or block_ids.is_cuda:
        return block_ids
    _C.check_block_ids(op, block_ids, len(caches[0]), once)
    return block_ids.to(caches[0].device)
