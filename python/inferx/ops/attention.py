"""Attention over the paged KV cache."""

from __future__ import annotations

import torch

from inferx.ops._lib import check_tensor, is_compiling, kernels_for, on_device, register

__all__ = ["merge_attn_states", "paged_attention"]

_paged_attention = register(
    "paged_attention(Tensor(a!) out, Tensor(b!)? lse, Tensor query, Tensor key_cache, Tensor value_cache, "
    "Tensor block_tables, Tensor cu_seqlens_q, Tensor seq_lens, float scale, int window=0, "
    "float softcap=0.0, Tensor? sinks=None, Tensor? k_scale=None, Tensor? v_scale=None, "
    "int? max_query_len=None, int split_size=512, Tensor(c!)? workspace=None, bool causal=True) -> ()"
)
_merge_attn_states = register(
    "merge_attn_states(Tensor(a!) output, Tensor(b!)? output_lse, Tensor prefix_output, Tensor prefix_lse, "
    "Tensor suffix_output, Tensor suffix_lse) -> ()"
)


_INT = (int, torch.SymInt)


def paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    *,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    max_query_len: int | None = None,
    split_size: int = 512,
    causal: bool = True,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of a batch of requests over a paged cache: prefill chunks and decodes in one call.

    Query i of request b (q_len = ``cu_seqlens_q[b + 1] - cu_seqlens_q[b]`` of them) sits at position
    ``seq_lens[b] - q_len + i`` and sees the keys at positions up to its own.  Its keys and values must be in
    the cache already.  A query that sees no key gives 0.

    A row's bits depend on its query, its keys and values and the options only: not on the rest of the batch,
    on block ids, block size, strides, the number of threads or the grid; on the CPU and for float32, not on
    how a prompt was cut into chunks either.

    Args:
        query: [T, num_heads, head_dim], any strides with a contiguous last dimension; head_dim a multiple of
            8 up to 256.  float32; on a device also float16 and bfloat16, which run on tensor cores.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], any strides with a
            contiguous last dimension.  For a float32 query float32, float16 or bfloat16, any block size; for
            a 16-bit one its dtype or float8_e4m3fn, block sizes that are multiples of 8.  num_heads is a
            multiple of num_kv_heads; query head h reads KV head ``h // (num_heads // num_kv_heads)``.  Slots
            that no query sees are not read, whatever they hold.
        block_tables: int32 [batch, max_blocks].  Entries that no query needs are not read.
        cu_seqlens_q: int32 [batch + 1], from 0 to T.  Requests may have no query.
        seq_lens: int32 [batch], keys in the cache, those of this call's tokens included.
        scale: factor of query . key, usually head_dim ** -0.5.
        window: each query sees its last ``window`` keys, its own included; 0 = all.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 = off.
        sinks: float32 [num_heads], one more logit per head that takes part in the softmax but has no value.
        k_scale, v_scale: float32, one element or [num_kv_heads]: what a float8 cache is to be multiplied
            with; None = 1.
        max_query_len: a bound of all q_len, T unless given.  A device cannot look at the lengths before it
            starts its kernels: with a bound of 1 it starts only those for few queries.  Rows of requests with
            more queries are undefined.
        split_size: keys that one CTA reads at a time in requests of few queries, a multiple of 64.  Part of
            the options that bits depend on.  The CPU has a size of its own.
        causal: False (devices only, no window): each query sees all ``seq_lens`` keys of its request.
        return_lse: also return the log-sum-exp of each row's scores.
        out: like ``query``; may be ``query`` itself.

    With a 16-bit query, rows of query, out and caches have to begin at multiples of 16 bytes (8 for a float8
    cache).  On a device the values in ``block_tables``, ``cu_seqlens_q`` and ``seq_lens`` are not checked:
    lengths are clamped to what the tensors hold, and keys in blocks that do not exist are left out.

    Returns:
        [T, num_heads, head_dim] of query's dtype, and with ``return_lse`` the natural log of the softmax's
        denominator (the sink's share included), float32 [T, num_heads], -inf where it is empty.

    Raises:
        ValueError: a shape, dtype, device, stride or alignment is wrong, or (CPU) a length or block id.
    """
    check_tensor("paged_attention", "query", query, 2)
    if max_query_len is not None and (not isinstance(max_query_len, _INT) or max_query_len < 0):
        raise ValueError(
            f"paged_attention: max_query_len: expected a number >= 0 or None, got {max_query_len!r}"
        )
    if not isinstance(split_size, _INT) or split_size < 64 or split_size % 64 != 0:
        raise ValueError(f"paged_attention: split_size: expected a multiple of 64, got {split_size!r}")
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    lse = query.new_empty(query.shape[:2], dtype=torch.float32) if return_lse else None
    workspace = None
    if on_device(query) and query.dtype != torch.float32:
        workspace = _workspace(query, key_cache, block_tables, max_query_len, split_size)
    call = _paged_attention if is_compiling() else kernels_for(query).paged_attention
    call(
        out, lse, query, key_cache, value_cache, block_tables, cu_seqlens_q, seq_lens,
        scale, window, softcap, sinks, k_scale, v_scale, max_query_len, split_size, workspace, causal,
    )  # fmt: skip
    return out if lse is None else (out, lse)


# Partial results of splits beyond this stay with one CTA a head, which costs nothing when there are so many.
_MAX_WORKSPACE = 64 << 20
# Query rows of a KV head (queries x heads of its group) that the kernel for few queries takes.
_DECODE_ROWS = 16


def _workspace(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    block_tables: torch.Tensor,
    max_query_len: int | None,
    split_size: int,
) -> torch.Tensor | None:
    """Scratch for the partial results of requests that are longer than a split: see csrc/bindings/cuda.

    Its size depends on shapes only, so that a captured CUDA graph holds with other lengths.
    """
    if query.ndim != 3 or key_cache.ndim != 4 or block_tables.ndim != 2 or split_size < 1:
        return None  # the op says what is wrong
    (tokens, heads, dim), (batch, max_blocks) = query.shape, block_tables.shape
    splits = -(-max_blocks * key_cache.shape[1] // split_size)
    queries = max(_DECODE_ROWS // max(heads // max(key_cache.shape[2], 1), 1), 1)
    if max_query_len is not None:
        queries = min(queries, max_query_len)
    rows = min(tokens, batch * queries) * heads * splits
    if splits < 2 or rows == 0:
        return None
    padded = next((d for d in (64, 80, 96, 128) if d >= dim), 256)
    size = min(-(-rows // 2) * 2 * (padded + 2) * 4, _MAX_WORKSPACE)
    return torch.empty(-(-batch * 4 // 16) * 16 + size, dtype=torch.uint8, device=query.device)


def merge_attn_states(
    prefix_output: torch.Tensor,
    prefix_lse: torch.Tensor,
    suffix_output: torch.Tensor,
    suffix_lse: torch.Tensor,
    *,
    return_lse: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Joins the attention of the same queries over two disjoint sets of keys.

    Method: section 2.2 of "FlashInfer" (Ye et al., 2025).  Where attention sinks are used, only one of the
    two calls gets them.

    Args:
        prefix_output, suffix_output: float32 [T, num_heads, head_dim], contiguous last dimension.
        prefix_lse, suffix_lse: float32 [T, num_heads], natural log, any strides; -inf = no key seen, and that
            side's output is not read.
        return_lse: also return the log-sum-exp over both sets.
        out: float32 [T, num_heads, head_dim]; may be one of the inputs.

    Returns:
        float32 [T, num_heads, head_dim] (0 where neither side saw a key), and with ``return_lse`` float32
        [T, num_heads].

    Raises:
        ValueError: a shape, dtype, device or stride is wrong.
    """
    check_tensor("merge_attn_states", "prefix_output", prefix_output)
    check_tensor("merge_attn_states", "prefix_lse", prefix_lse)
    if out is None:
        out = torch.empty_like(prefix_output, memory_format=torch.contiguous_format)
    lse = torch.empty_like(prefix_lse, memory_format=torch.contiguous_format) if return_lse else None
    call = _merge_attn_states if is_compiling() else kernels_for(prefix_output).merge_attn_states
    call(out, lse, prefix_output, prefix_lse, suffix_output, suffix_lse)
    return out if lse is None else (out, lse)
