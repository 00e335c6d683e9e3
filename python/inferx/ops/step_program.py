"""A whole step of a decoder as one call: its ops are recorded once and replayed without Python.

A recorded op has the bits of the op of the same name in ``inferx.ops``.  All of them run under one team of
threads that stands by from the first to the last, so that an op costs a fraction of a microsecond beside its
kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from inferx import _C
from inferx.ops.linear import PackedWeight

__all__ = ["Codes", "Columns", "StepInput", "StepProgram"]


class Columns(NamedTuple):
    """Columns [first, first + width) of a float32 buffer [T, ...]; T is the step's number of tokens."""

    buffer: int
    first: int
    width: int

    def split(self, sizes: Sequence[int]) -> list[Columns]:
        """Neighbouring ranges of these sizes."""
        starts = [self.first + sum(sizes[:i]) for i in range(len(sizes))]
        return [Columns(self.buffer, start, size) for start, size in zip(starts, sizes, strict=True)]


class Codes(NamedTuple):
    """Rows [T, width] quantised to int8 with a scale for each 32 elements."""

    buffer: int
    width: int


class StepInput(NamedTuple):
    """What linear layers read: floats, codes or both, as they want."""

    floats: Columns | None
    codes: Codes | None


class StepProgram:
    """Ops on the tokens of a step.  ``out``: the buffer that ``run`` is given, [T, out_width].

    Recording methods raise ValueError for widths that do not fit; weights are kept alive.  Memory is taken by
    ``run`` and kept between steps up to 64 MB.
    """

    def __init__(self, out_width: int) -> None:
        self._program = _C.StepProgram(out_width)
        self.out = Columns(0, 0, out_width)
        # Buffers that are not in use at the same time share a slot of memory.
        self._slot_sizes: list[int] = []  # bytes per token
        self._free_slots: list[int] = []
        self._slot_of: dict[Columns | Codes, int] = {}
        self._taken: dict[tuple[type, int, int], Columns | Codes] = {}

    # -- Buffers -------------------------------------------------------------------------------------------

    def take(self, width: int) -> Columns:
        """A buffer of ``width`` floats per token."""
        slot = self._take_slot(4 * width)
        buffer = self._taken.get((Columns, width, slot))
        if not isinstance(buffer, Columns):
            buffer = Columns(self._program.add_buffer(width, slot), 0, width)
            self._taken[Columns, width, slot] = buffer
        self._slot_of[buffer] = slot
        return buffer

    def take_codes(self, width: int) -> Codes:
        slot = self._take_slot(width + width // 32 * 12)
        buffer = self._taken.get((Codes, width, slot))
        if not isinstance(buffer, Codes):
            buffer = Codes(self._program.add_quantized(width, slot), width)
            self._taken[Codes, width, slot] = buffer
        self._slot_of[buffer] = slot
        return buffer

    def give_back(self, *buffers: Columns | Codes | None) -> None:
        """Their memory may be used by what is taken from now on."""
        self._free_slots += [self._slot_of.pop(buffer) for buffer in buffers if buffer is not None]

    def _take_slot(self, size: int) -> int:
        if not self._free_slots:
            self._slot_sizes.append(size)
            return len(self._slot_sizes) - 1
        slot = min(self._free_slots, key=lambda i: abs(self._slot_sizes[i] - size))
        self._free_slots.remove(slot)
        self._slot_sizes[slot] = max(self._slot_sizes[slot], size)
        return slot

    # -- Ops -----------------------------------------------------------------------------------------------

    def embedding(self, table: PackedWeight, out: Columns, scale: float | None = None) -> None:
        """The step's ids' rows, times ``scale``."""
        self._program.embedding(table.handle, 1.0 if scale is None else scale, out)

    def zero(self, x: Columns) -> None:
        self._program.zero(x)

    def norm(self, x: Columns, weight: torch.Tensor, eps: float, out: Columns) -> None:
        """RMS norm of each group of len(weight) columns; ``out`` may be ``x``."""
        self._program.norm(x, weight, eps, out)

    def add_norm(
        self, x: Columns, residual: Columns, weight: torch.Tensor, eps: float, int8: Collection[bool]
    ) -> StepInput:
        """residual += x, then x = the norm of residual.  The result is what ``input`` says of it."""
        if True not in int8:
            self._program.add_norm(x, residual, weight, eps)
            return StepInput(x, None)
        codes = self.take_codes(x.width)
        self._program.norm_quantize(x, residual, weight, eps, codes.buffer)
        return StepInput(x, codes)

    def input(self, x: Columns, int8: Collection[bool]) -> StepInput:
        """x for readers of floats, and quantised too where ``int8`` has True; its codes are to be given
        back."""
        codes = None
        if True in int8:
            codes = self.take_codes(x.width)
            self._program.quantize(x, codes.buffer)
        return StepInput(x, codes)

    def linear(
        self, x: StepInput, weight: PackedWeight, bias: torch.Tensor | None, int8: bool, out: Columns
    ) -> None:
        if int8:
            assert x.codes is not None
            self._program.linear_int8(x.codes.buffer, weight.handle, bias, out)
        else:
            assert x.floats is not None
            self._program.linear(x.floats, weight.handle, bias, out)

    def activate_and_mul(self, activation: str, x: Columns, out: Columns) -> None:
        """activation: "silu", "gelu" or "gelu_tanh"."""
        self._program.activate_and_mul(activation, x, out)

    def gate_up_int8(
        self, x: Codes, weight: PackedWeight, bias: torch.Tensor | None, activation: str
    ) -> Codes:
        """``linear``, ``activate_and_mul`` and ``input`` of an int8 layer in one.  Half of its rows, the
        gate's, are a multiple of 32."""
        out = self.take_codes(weight.shape[0] // 2)
        self._program.gate_up_int8(x.buffer, weight.handle, bias, activation, out.buffer)
        return out

    def clamp(self, x: Columns, limit: float) -> None:
        """To +-limit."""
        self._program.clamp(x, limit)

    def rope_and_cache(
        self, query: Columns, key: Columns, value: Columns, head_dim: int, rotary: int, layer: int
    ) -> None:
        """rotary, layer: which of ``run``'s rotaries and caches."""
        self._program.rope_and_cache(query, key, value, head_dim, rotary, layer)

    def attention(
        self,
        query: Columns,
        out: Columns,
        head_dim: int,
        num_kv_heads: int,
        layer: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """As ``paged_attention``."""
        self._program.attention(query, out, head_dim, num_kv_heads, layer, scale, window, softcap, sinks)

    def head(self, weight: PackedWeight, int8: bool = False) -> None:
        """Last: logits of the rows of ``out`` that ``run`` names."""
        self._program.head(weight.handle, int8)

    # -- Running -------------------------------------------------------------------------------------------

    def run(
        self,
        out: torch.Tensor,
        input_ids: torch.Tensor,
        rotaries: Sequence[tuple[torch.Tensor, torch.Tensor]],
        slot_mapping: torch.Tensor,
        block_tables: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        seq_lens: torch.Tensor,
        kv: Sequence[tuple[torch.Tensor, ...]],
        logits_rows: torch.Tensor | None = None,
        logits: torch.Tensor | None = None,
    ) -> None:
        """One step of T tokens.

        Args:
            out: float32 [T, out_width].
            input_ids, slot_mapping: int64 [T]; slot_mapping, block_tables, cu_seqlens_q and seq_lens as
                ``reshape_and_cache_flash`` and ``paged_attention`` take them.
            rotaries: index int64 [T] and cos/sin table [P, rot_dim] of each that ops refer to.
            kv: key and value cache of each layer, all of one number of blocks and block size.
            logits_rows: int64 [R], rows of ``out``.
            logits: float32 [R, N], where the head's products of these rows go.

        Raises:
            IndexError, ValueError, TypeError: as the ops would; nothing has been written then.
            RuntimeError: the program is running on another thread.
        """
        self._program.run(
            out,
            input_ids,
            rotaries,
            slot_mapping,
            block_tables,
            cu_seqlens_q,
            seq_lens,
            kv,
            logits_rows,
            logits,
        )
