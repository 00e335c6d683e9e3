"""From a planned step to the flat tensors that the model reads (the conventions of ``layers.attention``)."""

from __future__ import annotations

from collections.abc import Sequence as SequenceABC
from dataclasses import dataclass

import numpy as np
import torch

from inferx.engine.scheduler_output import ScheduledSequence
from inferx.layers.attention import AttentionMetadata


@dataclass(frozen=True)
class Batch:
    """input_ids, positions, rope_lens: int64 [T].  first_rows, last_rows: where each entry's tokens lie."""

    input_ids: torch.Tensor
    positions: torch.Tensor
    rope_lens: torch.Tensor
    attention: AttentionMetadata
    first_rows: list[int]
    last_rows: list[int]


def build_batch(entries: SequenceABC[ScheduledSequence], block_size: int) -> Batch:
    """Lay the tokens of all entries flat, in order.

    rope_lens: a prompt token's is the prompt's length, an output token's its position + 1, so that a
    token's rotation depends neither on chunking nor on preemption.
    """
    total = sum(e.num_tokens for e in entries)
    input_ids = np.empty(total, np.int64)
    positions = np.empty(total, np.int64)
    slots = np.empty(total, np.int64)
    rope_lens = np.empty(total, np.int64)
    cu_seqlens = np.zeros(len(entries) + 1, np.int32)
    seq_lens = np.empty(len(entries), np.int32)
    # Only the blocks that hold tokens up to the end of this step are read.
    widths = [-(-(e.first_position + e.num_tokens) // block_size) for e in entries]
    block_tables = np.zeros((len(entries), max(widths, default=0)), np.int32)
    row = 0
    for i, entry in enumerate(entries):
        first, count = entry.first_position, entry.num_tokens
        end = first + count
        rows = slice(row, row + count)
        input_ids[rows] = entry.seq.token_ids[first:end]
        position = np.arange(first, end)
        positions[rows] = position
        table = np.array(entry.block_table[: widths[i]], np.int32)
        block_tables[i, : widths[i]] = table
        slots[rows] = table[position // block_size].astype(np.int64) * block_size + position % block_size
        rope_lens[rows] = np.maximum(position + 1, entry.seq.num_prompt_tokens)
        row += count
        cu_seqlens[i + 1] = row
        seq_lens[i] = end
    return Batch(
        input_ids=torch.from_numpy(input_ids),
        positions=torch.from_numpy(positions),
        rope_lens=torch.from_numpy(rope_lens),
        attention=AttentionMetadata(
            block_tables=torch.from_numpy(block_tables),
            cu_seqlens_q=torch.from_numpy(cu_seqlens),
            seq_lens=torch.from_numpy(seq_lens),
            slot_mapping=torch.from_numpy(slots),
        ),
        first_rows=cu_seqlens[:-1].tolist(),
        last_rows=(cu_seqlens[1:] - 1).tolist(),
    )
