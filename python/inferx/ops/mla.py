"""Latent attention (DeepSeek's MLA): writing its cache and attending over it."""

from __future__ import annotations

import torch
from torch import Tensor

from inferx.ops._lib import check_number, check_tensor, is_compiling, kernels_for, on_device, register

__all__ = ["concat_and_cache_mla", "mla_attention"]

_concat_and_cache_mla = register(
    "concat_and_cache_mla(Tensor kv_c, Tensor k_pe, Tensor(a!) kv_cache, Tensor slot_mapping) -> ()"
)
_mla_attention = register(
    "mla_attention(Tensor(a!) out, Tensor(b!)? lse, Tensor query, Tensor kv_cache, Tensor block_tables, "
    "Tensor cu_seqlens_q, Tensor seq_lens, float scale, int value_dim, int? max_query_len=None, "
    "Tensor(c!)? workspace=None) -> ()"
)

_INT = (int, torch.SymInt)
_MAX_DIM = 1024  # of a row, as in csrc/bindings/checks/mla_attention.h


def concat_and_cache_mla(kv_c: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """Writes the latent vectors and rotary keys of T tokens into their slots of the paged cache, in place.

    Args:
        kv_c: ``[T, R]``, the normalised latent vectors, float32, float16 or bfloat16; any strides with a
            contiguous last dimension, so slices of a fused projection do.
        k_pe: ``[T, P]``, the rotary part of the keys, which all heads share; likewise, of kv_c's dtype.
        kv_cache: ``[num_blocks, block_size, R + P]``, any strides with a contiguous last dimension.  On a
            device of kv_c's dtype; on the CPU float32, float16 or bfloat16 (rounded to nearest even).
        slot_mapping: int64 ``[T]``, block * block_size + offset of each token, -1 to skip it.  Two tokens
            with one slot leave either's row, or a mix, there.

    On a GPU the slots cannot be looked at: those out of range are skipped.

    Raises:
        ValueError: a shape, dtype, device, stride or slot is wrong.  Nothing has been written then.
    """
    call = _concat_and_cache_mla if is_compiling() else kernels_for(kv_c).concat_and_cache_mla
    call(kv_c, k_pe, kv_cache, slot_mapping)


def mla_attention(
    query: Tensor,
    kv_cache: Tensor,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    value_dim: int,
    max_query_len: int | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Causal multi-query attention over a paged cache of latent vectors, prefill chunks and decodes in one.

    All heads share one key and one value per token: the key is a row of the cache (latent vector and rotary
    part, R + P elements), the value its first ``value_dim`` elements.  This is section 2.1 of "DeepSeek-V2"
    (2024) with the up-projections absorbed: a head's query is ``[q_nope @ W_UK, q_pe]``, and its output is
    yet to be multiplied with W_UV.

    Query i of request b (q_len = ``cu_seqlens_q[b + 1] - cu_seqlens_q[b]`` of them) sits at position
    ``seq_lens[b] - q_len + i`` and sees the keys at positions up to its own.  Its row must be in the cache
    already.  A query that sees no key gives 0.

    A row's bits depend on its query, the rows it sees and the scale only: not on the rest of the batch, on
    block ids, block size, strides, the number of threads, the grid or how a prompt was cut into chunks.

    Args:
        query: [T, num_heads, R + P], any strides with a contiguous last dimension; R + P a multiple of 8 up
            to 1024.  float32; on a device also float16 and bfloat16.
        kv_cache: [num_blocks, block_size, R + P], any strides with a contiguous last dimension.  For a
            float32 query float32, float16 or bfloat16; for a 16-bit one its dtype.  Slots that no query sees
            are not read, whatever they hold.
        block_tables: int32 [batch, max_blocks].  Entries that no query needs are not read.
        cu_seqlens_q: int32 [batch + 1], from 0 to T.  Requests may have no query.
        seq_lens: int32 [batch], rows in the cache, those of this call's tokens included.
        scale: factor of query . key; for MLA that is ``(nope + P) ** -0.5``, not ``(R + P) ** -0.5``.
        value_dim: elements of a row that are its value, R; a multiple of 8.
        max_query_len: a bound of all q_len, T unless given: a device cannot look at the lengths before it
            starts its kernels.  Rows of requests with more queries are undefined.
        return_lse: also return the log-sum-exp of each row's scores.
        out: [T, num_heads, value_dim] of query's dtype, apart from the inputs in memory.

    On a device the values in ``block_tables``, ``cu_seqlens_q`` and ``seq_lens`` are not checked: lengths are
    clamped to what the tensors hold, and keys in blocks that do not exist are left out.

    Tensor cores take a 16-bit query whose (R + P, value_dim) is (576, 512), (288, 256) or (80, 64): rows of
    query, out and kv_cache have to begin at multiples of 16 bytes then, and block sizes are multiples of 8.
    Other dimensions run in float32 arithmetic, as float32 does.

    Returns:
        [T, num_heads, value_dim] of query's dtype, and with ``return_lse`` the natural log of the softmax's
        denominator, float32 [T, num_heads], -inf where it is empty.

    Raises:
        ValueError: a shape, dtype, device, stride or alignment is wrong, or (CPU) a length or block id.
        TypeError: query is no tensor, or value_dim no int.
    """
    check_tensor("mla_attention", "query", query, 2)
    if max_query_len is not None and (not isinstance(max_query_len, _INT) or max_query_len < 0):
        raise ValueError(
            f"mla_attention: max_query_len: expected a number >= 0 or None, got {max_query_len!r}"
        )
    check_number("mla_attention", "value_dim", value_dim, _MAX_DIM)
    if out is None:
        out = query.new_empty((*query.shape[:2], value_dim))
    lse = query.new_empty(query.shape[:2], dtype=torch.float32) if return_lse else None
    workspace = None
    if on_device(query) and query.dtype != torch.float32:
        workspace = _workspace(query, kv_cache, block_tables, value_dim, max_query_len)
    call = _mla_attention if is_compiling() else kernels_for(query).mla_attention
    call(
        out, lse, query, kv_cache, block_tables, cu_seqlens_q, seq_lens,
        scale, value_dim, max_query_len, workspace,
    )  # fmt: skip
    return out if lse is None else (out, lse)


# Keys that one CTA reads at a time in requests of few query rows; how many rows (queries x heads) are few.
_SPLIT_SIZE, _SPLIT_ROWS = 512, 64
# Partial results of splits beyond this stay with one CTA a request, which costs nothing with so many.
_MAX_WORKSPACE = 64 << 20


def _workspace(
    query: Tensor, kv_cache: Tensor, block_tables: Tensor, value_dim: int, max_query_len: int | None
) -> Tensor | None:
    """Scratch for the partial results of requests that are longer than a split: see csrc/bindings/cuda.

    Its size depends on shapes only, so that a captured CUDA graph holds with other lengths.
    """
    if query.ndim != 3 or kv_cache.ndim != 3 or block_tables.ndim != 2:
        return None  # the op says what is wrong
    (tokens, heads, _), (batch, max_blocks) = query.shape, block_tables.shape
    splits = -(-max_blocks * kv_cache.shape[1] // _SPLIT_SIZE)
    queries = max(_SPLIT_ROWS // max(heads, 1), 1)
    if max_query_len is not None:
        queries = min(queries, max_query_len)
    rows = min(tokens, batch * queries) * heads * splits
    if splits < 2 or rows == 0:
        return None
    size = min(-(-rows // 2) * 2 * (value_dim + 2) * 4, _MAX_WORKSPACE)
    return torch.empty(-(-batch * 4 // 16) * 16 + size, dtype=torch.uint8, device=query.device)
