"""Cascade attention: the keys that all requests of a batch share are read once for all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from inferx.ops._lib import check_tensor, on_device
from inferx.ops.attention import merge_attn_states, paged_attention

__all__ = ["cascade_attention"]

# Keys of the prefix that one request of the first pass reads.  With fewer, more CTAs share a long prefix and
# more results have to be joined.  Counted from position 0, so that bits depend on the prefix alone.
_SPLIT = 2048


def cascade_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    common_blocks: Tensor,
    num_common: int,
    block_tables: Tensor,
    cu_seqlens_q: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    max_query_len: int | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`paged_attention` of requests whose first ``num_common`` keys are the same blocks.

    All queries together read the common keys as one request without a causal mask, so that each key is
    loaded once for many query rows; then each request reads its own keys, and the two are joined by their
    log-sum-exps (section 2.2 of "FlashInfer", Ye et al., 2025).  It pays off for long prefixes and many
    requests.  There is no sliding window: the prefix would lie outside of it.

    Args:
        query, key_cache, value_cache, cu_seqlens_q, scale, softcap, sinks, k_scale, v_scale, max_query_len,
            return_lse, out: as of :func:`paged_attention`.
        common_blocks: int32 [n], the blocks that hold the common keys, n * block_size >= num_common.
        num_common: how many common keys there are.  Every query lies behind them.
        block_tables: int32 [batch, max_blocks], each request's blocks behind the common part: the columns
            from ``num_common // block_size`` on of the usual table, where num_common fills its last block.
        seq_lens: int32 [batch], keys behind the common part, those of this call's tokens included.

    Returns:
        As :func:`paged_attention`, whose result it equals but for rounding.

    Raises:
        ValueError: a shape, dtype, device or stride is wrong.
    """
    _check(query, key_cache, common_blocks, num_common)
    if num_common == 0 or query.shape[0] == 0:
        return paged_attention(
            query, key_cache, value_cache, block_tables, cu_seqlens_q, seq_lens, scale,
            softcap=softcap, sinks=sinks, k_scale=k_scale, v_scale=v_scale, max_query_len=max_query_len,
            return_lse=return_lse, out=out,
        )  # fmt: skip
    prefix, prefix_lse = _attend_prefix(
        query, key_cache, value_cache, common_blocks, num_common, scale, softcap, k_scale, v_scale
    )
    # Not before the prefix has been attended: out may be query.
    suffix, suffix_lse = paged_attention(
        query, key_cache, value_cache, block_tables, cu_seqlens_q, seq_lens, scale,
        softcap=softcap, sinks=sinks, k_scale=k_scale, v_scale=v_scale, max_query_len=max_query_len,
        return_lse=True, out=out,
    )  # fmt: skip
    return merge_attn_states(prefix, prefix_lse, suffix, suffix_lse, return_lse=return_lse, out=suffix)


def _check(query: Tensor, key_cache: Tensor, common_blocks: Tensor, num_common: int) -> None:
    def fail(name: str, expected: str, given: object) -> None:
        raise ValueError(f"cascade_attention: {name}: expected {expected}, got {given}")

    for name, tensor in (("query", query), ("key_cache", key_cache), ("common_blocks", common_blocks)):
        check_tensor("cascade_attention", name, tensor)
    if query.ndim != 3:
        fail("query", "3 dimensions", query.ndim)
    if key_cache.ndim != 4:
        fail("key_cache", "4 dimensions", key_cache.ndim)
    if common_blocks.ndim != 1:
        fail("common_blocks", "1 dimension", common_blocks.ndim)
    if common_blocks.dtype != torch.int32:
        fail("common_blocks", "dtype int32", common_blocks.dtype)
    if common_blocks.device != query.device:
        fail("common_blocks", f"device {query.device} as query", common_blocks.device)
    if not isinstance(num_common, int) or num_common < 0:
        fail("num_common", "a number >= 0", num_common)
    block_size, count = key_cache.shape[1], common_blocks.shape[0]
    if num_common > count * block_size:
        fail("num_common", f"at most {count * block_size} (common_blocks x block size)", num_common)


def _attend_prefix(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    common_blocks: Tensor,
    num_common: int,
    scale: float,
    softcap: float,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of all queries over the common keys."""
    tokens, device = query.shape[0], query.device
    if not on_device(query):
        # The CPU's op is causal; a request for each query, at the prefix's last key, sees all of it.
        return paged_attention(  # type: ignore[return-value]
            query, key_cache, value_cache, common_blocks[None].expand(tokens, -1),
            torch.arange(tokens + 1, dtype=torch.int32, device=device),
            torch.full((tokens,), num_common, dtype=torch.int32, device=device),
            scale, softcap=softcap, k_scale=k_scale, v_scale=v_scale, return_lse=True,
        )  # fmt: skip
    block_size = key_cache.shape[1]
    blocks = -(-_SPLIT // block_size)  # of a split
    splits = -(-num_common // (blocks * block_size))
    if splits == 1:
        blocks = common_blocks.shape[0]
    used = common_blocks[: splits * blocks]
    tables = torch.nn.functional.pad(used, (0, splits * blocks - used.shape[0])).view(splits, blocks)
    # Filled on the device: a captured graph may not copy from the host.
    lens = torch.full((splits,), blocks * block_size, dtype=torch.int32, device=device)
    lens[-1:].fill_(num_common - (splits - 1) * blocks * block_size)
    out, lse = paged_attention(
        query.repeat(splits, 1, 1) if splits > 1 else query, key_cache, value_cache, tables,
        torch.arange(0, (splits + 1) * tokens, tokens, dtype=torch.int32, device=device), lens,
        scale, softcap=softcap, k_scale=k_scale, v_scale=v_scale, max_query_len=tokens, causal=False,
        return_lse=True,
    )  # fmt: skip
    while splits > 1:  # the first half with the second, in a few launches; an odd one stays in the middle
        half = splits // 2
        first, second = slice(0, half * tokens), slice((splits - half) * tokens, splits * tokens)
        _, joined = merge_attn_states(
            out[first], lse[first], out[second], lse[second], out=out[first], return_lse=True
        )
        lse[first].copy_(joined)
        splits -= half
    return out[:tokens], lse[:tokens]
