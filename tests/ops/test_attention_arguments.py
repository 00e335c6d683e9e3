"""Arguments of the attention ops that point into one another, and windows beyond every length."""

from __future__ import annotations

import pytest
import torch

from inferx import ops


def small_call() -> dict[str, torch.Tensor]:
    return {
        "query": torch.randn(5, 2, 16),
        "key_cache": torch.randn(4, 8, 1, 16),
        "value_cache": torch.randn(4, 8, 1, 16),
        "block_tables": torch.zeros(1, 1, dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, 5], dtype=torch.int32),
        "seq_lens": torch.tensor([5], dtype=torch.int32),
    }


def test_a_window_beyond_every_length_is_none() -> None:
    call = small_call()
    expected = ops.paged_attention(**call, scale=1.0, return_lse=True)
    for window in (5, 2**31, 2**62, 2**63 - 1):
        got = ops.paged_attention(**call, scale=1.0, window=window, return_lse=True)
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
        with pytest.raises(ValueError, match="block_tables"):
            ops.paged_attention(
                **{**call, "block_tables": torch.full((1, 1), 10**9, dtype=torch.int32)},
                scale=1.0,
                window=window,
            )


def test_outputs_inside_inputs_are_refused() -> None:
    call = small_call()
    for cache in ("key_cache", "value_cache"):
        with pytest.raises(ValueError, match=f"out: expected memory apart from that of {cache}"):
            ops.paged_attention(**call, scale=1.0, out=call[cache].view(-1)[:160].view(5, 2, 16))
    out = torch.empty(5, 2, 16)
    lse = out.view(-1)[:10].view(5, 2)
    arguments = [call[n] for n in ("key_cache", "value_cache", "block_tables", "cu_seqlens_q", "seq_lens")]
    with pytest.raises(ValueError, match="lse: expected memory apart"):
        torch.ops.inferx.paged_attention(out, lse, call["query"], *arguments, 1.0, 0, 0.0, None)
    one = torch.randn(5, 2, 16)
    with pytest.raises(ValueError, match="output_lse: expected memory apart"):
        torch.ops.inferx.merge_attn_states(out, lse, one, torch.randn(5, 2), one.clone(), torch.randn(5, 2))
    cache, key = call["key_cache"], torch.randn(5, 1, 16)
    with pytest.raises(ValueError, match="value_cache: expected memory apart"):
        ops.reshape_and_cache_flash(key, key.clone(), cache, cache, torch.arange(5))
    with pytest.raises(ValueError, match="key_cache: expected memory apart from that of key"):
        ops.reshape_and_cache_flash(cache[0, :5], key, cache, call["value_cache"], torch.arange(5))
