"""From a planned step to the flat tensors that the model reads (the conventions of ``layers.attention``)."""

from __future__ import annotations

from collections.abc import Sequence as SequenceABC
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from inferx.engine.scheduler_output import ScheduledSequence
from inferx.layers.attention import AttentionMetadata

# Bytes; each array starts at a multiple.
_ALIGNMENT = 16
# Entries of one token from which on arrays are filled by columns.
FEW = 6


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
        num_tokens, longest, samples, sources = padded, 0, 0, 0
        for e in entries:
            num_tokens += e.num_tokens
            longest = max(longest, e.first_position + e.num_tokens)
            samples += len(e.samples)
            sources += e.token_source is not None
        # Only the blocks that hold tokens up to the end of this step are read.
        width = -(-longest // block_size)
        return cls(num_tokens, len(entries) + padded, padded, width, samples, sources, copies)


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


@lru_cache(maxsize=256)
def layout_of(shape: BatchShape) -> Layout:
    """Steps of one shape follow one another while a batch decodes."""
    return Layout(shape)


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
    layout = layout_of(BatchShape.of(entries, block_size))
    buffer = np.empty(layout.nbytes, np.uint8)
    return BatchArrays(layout, torch.from_numpy(buffer), fill(layout, buffer, entries, block_size))


def fill(
    layout: Layout, buffer: np.ndarray, entries: SequenceABC[ScheduledSequence], block_size: int
) -> list[int]:
    """Lay the tokens of all entries flat, in order; the first row of each entry.

    rope_lens: a prompt token's is the prompt's length, an output token's its position + 1, so that a
    token's rotation depends neither on chunking nor on preemption.
    """
    a = {
        name: np.ndarray(size, np.int64 if wide else np.int32, buffer, start)
        for name, (start, wide, size) in layout.fields.items()
    }
    a["cu_seqlens_q"][0] = 0
    tables = a["block_tables"]
    tables.fill(0)
    for i, entry in enumerate(entries):
        width = -(-(entry.first_position + entry.num_tokens) // block_size)
        tables[i, :width] = np.frombuffer(entry.block_table, np.int32, width)
    # Decodes come first.  Many are faster together.
    singles = next((i for i, e in enumerate(entries) if e.num_tokens != 1), len(entries))
    if singles < FEW:
        singles = 0
    else:
        _fill_singles(a, entries[:singles], block_size)
    first_rows = list(range(singles))
    row = singles
    for i in range(singles, len(entries)):
        first_rows.append(row)
        row = _fill_entry(a, entries[i], i, row, block_size)
    if layout.shape.padded:
        a["input_ids"][row:], a["positions"][row:], a["rope_lens"][row:] = 0, 0, 1
        a["slot_mapping"][row:], a["seq_lens"][len(entries) :] = -1, 0
        a["cu_seqlens_q"][len(entries) + 1 :] = np.arange(row + 1, layout.shape.num_tokens + 1)
    if layout.shape.sources:
        sources = [(r, e.token_source) for r, e in zip(first_rows, entries, strict=True)]
        found = [(r, source) for r, source in sources if source is not None]
        a["source_rows"][:], a["source_index"][:] = zip(*found, strict=True)
        a["input_ids"][a["source_rows"]] = 0  # a valid id until the token is there
    last_rows = [r + e.num_tokens - 1 for r, e in zip(first_rows, entries, strict=True)]
    a["sample_rows"][:] = [r for r, e in zip(last_rows, entries, strict=True) for _ in e.samples]
    return first_rows


def _fill_singles(a: dict[str, np.ndarray], entries: SequenceABC[ScheduledSequence], block_size: int) -> None:
    """The first rows: entries of one token each."""
    count = len(entries)
    positions = a["positions"][:count]
    positions[:] = [e.first_position for e in entries]
    a["input_ids"][:count] = [e.seq.token_ids[e.first_position] for e in entries]
    np.maximum(
        positions + 1,
        [e.seq.num_prompt_tokens for e in entries],
        out=a["rope_lens"][:count],
        casting="unsafe",
    )
    blocks = [e.block_table[e.first_position // block_size] for e in entries]
    a["slot_mapping"][:count] = np.array(blocks, np.int64) * block_size + positions % block_size
    a["cu_seqlens_q"][: count + 1] = np.arange(count + 1)
    a["seq_lens"][:count] = positions + 1


def _fill_entry(
    a: dict[str, np.ndarray], entry: ScheduledSequence, index: int, row: int, block_size: int
) -> int:
    """An entry of any number of tokens, from ``row`` on; the row behind it."""
    first, end = entry.first_position, entry.first_position + entry.num_tokens
    a["cu_seqlens_q"][index + 1] = row + entry.num_tokens
    a["seq_lens"][index] = end
    if entry.num_tokens == 1:
        a["input_ids"][row] = entry.seq.token_ids[first]
        a["positions"][row] = first
        a["slot_mapping"][row] = entry.block_table[first // block_size] * block_size + first % block_size
        a["rope_lens"][row] = max(end, entry.seq.num_prompt_tokens)
        return row + 1
    rows = slice(row, row + entry.num_tokens)
    position = np.arange(first, end)
    table = np.frombuffer(entry.block_table, np.int32)
    a["input_ids"][rows] = entry.seq.token_ids[first:end]
    a["positions"][rows] = position
    blocks = table[position // block_size].astype(np.int64)
    a["slot_mapping"][rows] = blocks * block_size + position % block_size
    a["rope_lens"][rows] = np.maximum(position + 1, entry.seq.num_prompt_tokens)
    return row + entry.num_tokens
