"""The arrays of decode steps on the CPU, kept from step to step.

A step that only decodes has one token and one sample per entry, and the next one mostly has the same entries
one position further.  So the memory, torch's views of it and the attention metadata stay, and of the block
tables only rows that changed are written.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as SequenceABC

import numpy as np
import torch

from inferx.engine.batch import BatchArrays, BatchShape, Layout, layout_of
from inferx.engine.scheduler_output import ScheduledSequence
from inferx.layers.attention import AttentionMetadata

# Shapes whose memory is kept: a batch that loses or gains a request, or a block, comes back to others seldom.
_NUM_KEPT = 4


class _KeptArrays(BatchArrays):
    """Arrays of one shape; every view is made once."""

    __slots__ = ("_attention", "_memory", "_rows", "_stride", "_tables", "_views", "_words")

    def __init__(self, layout: Layout) -> None:
        memory = np.zeros(layout.nbytes, np.uint8)
        count = layout.shape.batch
        super().__init__(layout, torch.from_numpy(memory), list(range(count)))
        self._views = {name: BatchArrays.__getitem__(self, name) for name in layout.fields}
        self._attention = super().attention()
        self._memory = {
            name: np.ndarray(size, np.int64 if wide else np.int32, memory, start)
            for name, (start, wide, size) in layout.fields.items()
        }
        self._memory["cu_seqlens_q"][:] = np.arange(count + 1)
        self._memory["sample_rows"][:] = np.arange(count)
        # The four arrays of 64-bit numbers, which lie one behind the other, each from an even place on.
        self._stride = count + count % 2
        self._words = memory[: 4 * self._stride * 8].view(np.int64)
        self._tables = self._memory["block_tables"]
        # Of each row: the table it shows, how many blocks and the last one, which alone can change in a table
        # of one length (see KVManager).  The table is held, so that no other one takes its place in memory.
        self._rows: list[tuple[array[int] | None, int, int]] = [(None, 0, 0)] * count

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._views[name]

    def attention(
        self, block_tables: torch.Tensor | None = None, *, max_query_len: int | None = None
    ) -> AttentionMetadata:
        if block_tables is None and max_query_len is None:
            return self._attention
        return super().attention(block_tables, max_query_len=max_query_len)

    def fill(
        self, entries: SequenceABC[ScheduledSequence], words: list[int], seq_lens: list[int], block_size: int
    ) -> None:
        """words: input_ids, positions, rope_lens and slot_mapping, each padded to an even number."""
        self._words[:] = words
        self._memory["seq_lens"][:] = seq_lens
        rows = self._rows
        for i, (entry, end) in enumerate(zip(entries, seq_lens, strict=True)):
            table = entry.block_table
            width = (end - 1) // block_size + 1
            last = table[width - 1]
            shown, shown_width, shown_last = rows[i]
            if shown is not table or shown_width != width or shown_last != last:
                self._tables[i, :width] = np.frombuffer(table, np.int32, width)
                self._tables[i, width:] = 0
                rows[i] = (table, width, last)


class DecodeBatches:
    """``build`` is ``build_batch`` for steps that only decode.  Its arrays are valid until the next call."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._kept: dict[tuple[int, int], _KeptArrays] = {}

    def build(self, entries: SequenceABC[ScheduledSequence]) -> BatchArrays:
        """entries: at least one, of one token and one sample each, that come from no step in flight."""
        size = self._block_size
        tokens, positions, ropes, slots, seq_lens = [], [], [], [], []
        for entry in entries:
            position, seq = entry.first_position, entry.seq
            end, prompt = position + 1, seq.num_prompt_tokens
            tokens.append(seq.token_ids[position])
            positions.append(position)
            ropes.append(end if end > prompt else prompt)
            slots.append(entry.block_table[position // size] * size + position % size)
            seq_lens.append(end)
        if len(tokens) % 2:
            for column in (tokens, positions, ropes, slots):
                column.append(0)
        arrays = self._arrays(len(seq_lens), (max(seq_lens) - 1) // size + 1)
        arrays.fill(entries, tokens + positions + ropes + slots, seq_lens, size)
        return arrays

    def _arrays(self, count: int, width: int) -> _KeptArrays:
        arrays = self._kept.get((count, width))
        if arrays is None:
            if len(self._kept) == _NUM_KEPT:
                del self._kept[next(iter(self._kept))]
            shape = BatchShape(count, count, width=width, samples=count)
            arrays = self._kept[count, width] = _KeptArrays(layout_of(shape))
        return arrays
