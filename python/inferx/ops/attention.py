"""Attention over the paged KV cache."""

from __future__ import annotations

import torch

from inferx.ops._lib import is_compiling, kernels_for, register

__all__ = ["merge_attn_states", "paged_attention"]

_paged_attention = register(
    "paged_attention(Tensor(a!) out, Tensor(b!)? lse, Tensor query, Tensor key_cache, Tensor value_cache, "
    "Tensor block_tables, Tensor cu_seqlens_q, Tensor seq_lens, float scale, int window=0, "
    "float softcap=0.0, Tensor? sinks=None) -> ()"
)
_merge_attn_states = register(
    "merge_attn_states(Tensor(a!) output, Tensor(b!)? output_lse, Tensor prefix_output, Tensor prefix_lse, "
    "Tensor suffix_output, Tensor suffix_lse) -> ()"
)


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
    return_lse: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of a batch of requests over a paged cache: prefill chunks and decodes in one call.

    Query i of request b (q_len = ``cu_seqlens_q[b + 1] - cu_seqlens_q[b]`` of them) sits at position
    ``seq_lens[b] - q_len + i`` and sees the keys at positions up to its own.  Its keys and values must be in
    the cache already.  A query that sees no key gives 0.

    A row's bits depend on its query, its keys and values and the options only: not on the rest of the batch,
    on how a prompt was cut into chunks, on block ids, block size, strides or the number of threads.

    Args:
        query: float32 [T, num_heads, head_dim], any strides with a contiguous last dimension; head_dim a
            multiple of 8 up to 256.
        key_cache, value_cache: [num_blocks, block_size, num_kv_heads, head_dim], float32, float16 or
            bfloat16, any strides with a contiguous last dimension, any block size.  num_heads is a multiple
            of num_kv_heads; query head h reads KV head ``h // (num_heads // num_kv_heads)``.  Slots that no
            query sees are not read, whatever they hold.
        block_tables: int32 [batch, max_blocks].  Entries that no query needs are not read.
        cu_seqlens_q: int32 [batch + 1], from 0 to T.  Requests may have no query.
        seq_lens: int32 [batch], keys in the cache, those of this call's tokens included.
        scale: factor of query . key, usually head_dim ** -0.5.
        window: each query sees its last ``window`` keys, its own included; 0 = all.
        softcap: scores become ``softcap * tanh(score / softcap)``; 0 = off.
        sinks: float32 [num_heads], one more logit per head that takes part in the softmax but has no value.
        return_lse: also return the log-sum-exp of each row's scores.
        out: like ``query``; may be ``query`` itself.

    Returns:
        float32 [T, num_heads, head_dim], and with ``return_lse`` the natural log of the softmax's denominator
        (the sink's share included), float32 [T, num_heads], -inf where it is empty.

    Raises:
        ValueError: a shape, dtype, device, stride, length or block id is wrong.
    """
    if out is None:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    lse = query.new_empty(query.shape[:2], dtype=torch.float32) if return_lse else None
    call = _paged_attention if is_compiling() else kernels_for(query).paged_attention
    call(
        out, lse, query, key_cache, value_cache, block_tables, cu_seqlens_q, seq_lens,
        scale, window, softcap, sinks,
    )  # fmt: skip
    return out if lse is None else (out, lse)


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
    if out is None:
        out = torch.empty_like(prefix_output, memory_format=torch.contiguous_format)
    lse = torch.empty_like(prefix_lse, memory_format=torch.contiguous_format) if return_lse else None
    call = _merge_attn_states if is_compiling() else kernels_for(prefix_output).merge_attn_states
    call(out, lse, prefix_output, prefix_lse, suffix_output, suffix_lse)
    return out if lse is None else (out, lse)
