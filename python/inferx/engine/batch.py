"""From a planned step to the flat tensors that the model reads (the conventions of ``layers.attention``)."""

from __future__ import annotations

from collections.abc import Sequence as SequenceABC
from typing import NamedTuple

import numpy as np
import torch

from inferx.engine.scheduler_output import ScheduledSequence
from inferx.layers.attention import AttentionMetadata

# Bytes; each array starts at a multiple.
_ALIGNMENT = 16


class BatchShape(NamedTuple):
    """Sizes of a step's arrays.

    padded: how many of the batch's requests are none: one token each that is written nowhere, sees nothing
    and is not sampled from.  width: blocks per row of the block table.  sources: tokens that come from the
    step before.
    """

    num_tokens: int
    batch: int
    padded: int = 0
    width: int = 0
    samples: int = 0
    sources: int = 0
    copies: int = 0

    @classmethod
    def of(
        cls,
        entries: SequenceABC[ScheduledSequence],
        block_size: int,
        *,
        pad_to: int | None = None,
        copies: int = 0,
    ) -> BatchShape:
        """pad_to: requests to fill the batch up to."""
        padded = 0 if pad_to is None else pad_to - len(entries)
        # Only the blocks that hold tokens up to the end of this step are read.
        return cls(
            num_tokens=sum(e.num_tokens for e in entries) + padded,
            batch=len(entries) + padded,
            padded=padded,
            width=max((-(-(e.first_position + e.num_tokens) // block_size) for e in entries), default=0),
            samples=sum(len(e.samples) for e in entries),
            sources=sum(e.token_source is not None for e in entries),
            copies=copies,
        )


class Layout:
    """Where the arrays of a step lie in one buffer, so that one copy brings them to a device.

    What a graph of a decode step reads comes first: its place depends on num_tokens and batch only.
    """

    __slots__ = ("fields", "nbytes", "shape")

    def __init__(self, shape: BatchShape) -> None:
        tokens, batch = (shape.num_tokens,), shape.batch
        self.shape = shape
        self.fields: dict[str, tuple[int, bool, tuple[int, ...]]] = {}  # start in bytes, is int64, size
        self.nbytes = 0
        for name, wide, size in (
            ("input_ids", True, tokens),
            ("positions", True, tokens),
            ("rope_lens", True, tokens),
            ("slot_mapping", True, tokens),
            ("cu_seqlens_q", False, (batch + 1,)),
            ("seq_lens", False, (batch,)),
            ("sample_rows", True, (shape.samples,)),  # whose logits are sampled from
            ("source_rows", True, (shape.sources,)),  # whose token ...
            ("source_index", True, (shape.sources,)),  # ... is this one of the step before's
            ("block_copies", True, (shape.copies, 2)),
            ("block_tables", False, (batch, shape.width)),
        ):
            self.fields[name] = (self.nbytes, wide, size)
            count = size[0] * (size[1] if len(size) == 2 else 1)
            self.nbytes += -(-count * (8 if wide else 4) // _ALIGNMENT) * _ALIGNMENT


class BatchArrays:
    """The arrays of a step as views of one buffer (uint8, on any device), made when asked for.

    input_ids, positions, rope_lens, slot_mapping: [T].  The rest: see ``Layout`` and ``AttentionMetadata``.
    first_rows: where each entry's tokens begin.
    """

    __slots__ = ("_int32", "_int64", "first_rows", "layout")

    def __init__(self, layout: Layout, buffer: torch.Tensor, first_rows: list[int]) -> None:
        self.layout = layout
        self.first_rows = first_rows
        self._int64 = buffer.view(torch.int64)
        self._int32 = buffer.view(torch.int32)

    def __getitem__(self, name: str) -> torch.Tensor:
        start, wide, size = self.layout.fields[name]
        typed, first = (self._int64, start // 8) if wide else (self._int32, start // 4)
        if len(size) == 2:
            return typed[first : first + size[0] * size[1]].view(size)
        return typed[first : first + size[0]]

    def attention(
        self, block_tables: torch.Tensor | None = None, *, max_query_len: int | None = None
    ) -> AttentionMetadata:
        """block_tables: instead of its own."""
        return AttentionMetadata(
            block_tables=self["block_tables"] if block_tables is None else block_tables,
            cu_seqlens_q=self["cu_seqlens_q"],
            seq_lens=self["seq_lens"],
            slot_mapping=self["slot_mapping"],
            max_query_len=max_query_len,
        )


def build_batch(entries: SequenceABC[ScheduledSequence], block_size: int) -> BatchArrays:
    """The arrays of a step on the CPU."""
    layout = Layout(BatchShape.of(entries, block_size))
    buffer = np.empty(layout.nbytes, np.uint8)
    return BatchArrays(layout, torch.from_numpy(buffer), fill(layout, buffer, entries, block_size))


def fill(
    layout: Layout, buffer: np.ndarray, entries: SequenceABC[ScheduledSequence], block_size: int
) -> list[int]:
    """Lay the tokens of all entries flat, in order; the first row of each entry.

    rope_lens: a prompt token's is the prompt's length, an output token's its position + 1, so that a
    token's rotation depends neither on chunking nor on preemption.
    """

    def array(name: str) -> np.ndarray:
        start, wide, size = layout.fields[name]
        return np.ndarray(size, np.int64 if wide else np.int32, buffer, start)

    input_ids, positions, slots = array("input_ids"), array("positions"), array("slot_mapping")
    rope_lens, tables = array("rope_lens"), array("block_tables")
    cu_seqlens, seq_lens = array("cu_seqlens_q"), array("seq_lens")
    first_rows: list[int] = []
    sample_rows: list[int] = []
    sources: list[tuple[int, int]] = []
    row = 0
    cu_seqlens[0] = 0
    for i, entry in enumerate(entries):
        first, count = entry.first_position, entry.num_tokens
        end = first + count
        width = -(-end // block_size)
        table = np.frombuffer(entry.block_table, np.int32, width)
        tables[i, :width] = table
        tables[i, width:] = 0
        if count == 1:
            input_ids[row] = entry.seq.token_ids[first]
            positions[row] = first
            slots[row] = int(table[first // block_size]) * block_size + first % block_size
            rope_lens[row] = max(end, entry.seq.num_prompt_tokens)
        else:
            rows = slice(row, row + count)
            input_ids[rows] = entry.seq.token_ids[first:end]
            position = np.arange(first, end)
            positions[rows] = position
            slots[rows] = table[position // block_size].astype(np.int64) * block_size + position % block_size
            rope_lens[rows] = np.maximum(position + 1, entry.seq.num_prompt_tokens)
        if entry.token_source is not None:
            input_ids[row] = 0  # a valid id until the token is there
            sources.append((row, entry.token_source))
        first_rows.append(row)
        row += count
        sample_rows += [row - 1] * len(entry.samples)
        cu_seqlens[i + 1] = row
        seq_lens[i] = end
    if layout.shape.padded:
        input_ids[row:], positions[row:], rope_lens[row:], slots[row:] = 0, 0, 1, -1
        tables[len(entries) :], seq_lens[len(entries) :] = 0, 0
        cu_seqlens[len(entries) + 1 :] = np.arange(row + 1, layout.shape.num_tokens + 1)
    array("sample_rows")[:] = sample_rows
    if sources:
        array("source_rows")[:], array("source_index")[:] = zip(*sources, strict=True)
    return first_rows
