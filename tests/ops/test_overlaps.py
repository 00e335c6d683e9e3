"""What an op writes shares memory with no other argument; interleaved layouts are no overlap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from inferx import ops


def floats(*shape: int) -> Tensor:
    return torch.randn(shape)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def rope(**change: Any) -> None:
    arguments = {
        "positions": torch.arange(3), "query": floats(3, 2, 8), "key": floats(3, 2, 8),
        "value": floats(3, 2, 8), "cos_sin_cache": floats(8, 8), "is_neox": True,
        "key_cache": floats(2, 4, 2, 8), "value_cache": floats(2, 4, 2, 8), "slot_mapping": torch.arange(3),
    }  # fmt: skip
    ops.rope_and_cache(**{**arguments, **change})


def attend(**change: Any) -> None:
    arguments = {
        "query": floats(3, 2, 8), "key_cache": floats(2, 4, 2, 8), "value_cache": floats(2, 4, 2, 8),
        "block_tables": torch.zeros(1, 1, dtype=torch.int32), "cu_seqlens_q": ints(0, 3),
        "seq_lens": ints(3), "scale": 1.0,
    }  # fmt: skip
    ops.paged_attention(**{**arguments, **change})


@pytest.mark.parametrize("written", ["query", "key", "key_cache", "value_cache"])
@pytest.mark.parametrize("read", ["positions", "slot_mapping", "cos_sin_cache"])
def test_rope_and_cache(written: str, read: str) -> None:
    buffer = floats(2, 4, 2, 8)
    out = buffer if "cache" in written else buffer.view(-1)[:48].view(3, 2, 8)
    flat = out.view(-1)
    flat[:6].view(torch.int64).copy_(torch.arange(3))
    other = flat[:32].view(4, 8) if read == "cos_sin_cache" else flat[:6].view(torch.int64)
    with pytest.raises(ValueError, match=f"{written}: expected memory apart from that of {read}"):
        rope(**{written: out, read: other})


def test_rotary_embedding() -> None:
    query = floats(4, 2, 8)
    with pytest.raises(ValueError, match="query: expected memory apart from that of cos_sin_cache"):
        ops.rotary_embedding(torch.arange(4), query, None, 8, query.view(8, 8))


@pytest.mark.parametrize("read", ["block_tables", "cu_seqlens_q", "seq_lens", "sinks"])
def test_paged_attention(read: str) -> None:
    out = floats(3, 2, 8)
    bits = out.view(-1).view(torch.int32)
    bits[:3] = ints(0, 3, 3)
    other = {
        "block_tables": bits[:1].view(1, 1), "cu_seqlens_q": bits[:2], "seq_lens": bits[1:2],
        "sinks": out.view(-1)[:2],
    }[read]  # fmt: skip
    with pytest.raises(ValueError, match=f"out: expected memory apart from that of {read}"):
        attend(out=out, **{read: other})


def test_merge_attn_states() -> None:
    out = floats(3, 4, 8)
    with pytest.raises(ValueError, match="output: expected memory apart from that of prefix_lse"):
        ops.merge_attn_states(
            floats(3, 4, 8), out.view(-1)[:12].view(3, 4), floats(3, 4, 8), floats(3, 4), out=out
        )


@pytest.mark.parametrize("shift", [1, 4])
def test_shifted_caches(shift: int) -> None:
    buffer, kv = floats(9, 4, 2, 8), floats(3, 2, 8)
    with pytest.raises(ValueError, match="value_cache: expected memory apart from that of key_cache"):
        ops.reshape_and_cache_flash(kv, kv, buffer[:5], buffer[shift : shift + 5], torch.arange(3))


@pytest.mark.parametrize("at", [1, 2, 3])
def test_interleaved_caches(at: int) -> None:
    """Keys and values side by side at any depth: in a block, a slot or a head."""
    shape = [5, 4, 2, 8]
    buffer = torch.zeros(*shape[:at], 2, *shape[at:])
    keys, values = buffer.unbind(at)
    kv = floats(3, 2, 8)
    ops.reshape_and_cache_flash(kv, kv + 1, keys, values, torch.arange(3))
    assert torch.equal(keys.flatten(0, 1)[:3], kv)
    assert torch.equal(values.flatten(0, 1)[:3], kv + 1)
    ops.copy_blocks([keys], [values], torch.tensor([[0, 4]]))
    assert torch.equal(values[4], values[0])
    # The same shifted by a block: some elements are shared.
    with pytest.raises(ValueError, match="expected memory apart"):
        ops.copy_blocks([keys[:4]], [keys[1:]], torch.tensor([[0, 1]]))


def test_caches_listed_twice() -> None:
    cache, other = floats(3, 4), floats(3, 4)
    with pytest.raises(ValueError, match="expected memory apart"):
        ops.copy_blocks([cache, cache], [other, floats(3, 4)], torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="expected memory apart"):
        ops.scatter_blocks(floats(2, 1, 4), [cache, cache], torch.tensor([0]))


def test_block_lists() -> None:
    memory = torch.zeros(8, 4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"out: expected memory apart from that of block_ids"):
        ops.gather_blocks([torch.zeros(8, 4, dtype=torch.int64)], memory[0, :2], out=memory[:2].view(1, 2, 4))
    with pytest.raises(ValueError, match=r"caches\[0\]: expected memory apart from that of block_ids"):
        ops.scatter_blocks(torch.zeros(1, 1, 4, dtype=torch.int64), [memory], memory[0, :1])
    with pytest.raises(ValueError, match="dst: expected memory apart from that of block_mapping"):
        ops.swap_blocks(torch.zeros_like(memory), memory, memory[0, :2].view(1, 2))


@pytest.mark.parametrize("softcap", [1e-38, 1e-50, -1.0, float("nan")])
def test_softcap_that_float32_has_not(softcap: float) -> None:
    with pytest.raises(ValueError, match="softcap: expected a number from 1e-37"):
        attend(softcap=softcap)
