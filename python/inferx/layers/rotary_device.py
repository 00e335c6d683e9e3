"""Cos/sin rows of a step on a device, where nobody may look at a position without waiting for it."""

from __future__ import annotations

import torch

from inferx.layers.rotary import RotaryEmbedding, RotaryRows, cos_sin, ntk_base

# Table rows computed at a time: angles are float64 on the host.
PIECE = 1 << 14


class DeviceRotary:
    """The rows of a ``RotaryEmbedding`` on ``device``, for positions up to ``num_positions``.

    Tables reach to the end of the context from the start.  longrope's two tables lie one behind the other,
    and a token's length chooses by its index; dynamic NTK computes its rows in each step, on the device.
    So ``rows`` has no host synchronisation, its work depends on no value, and a CUDA graph may hold it.
    """

    def __init__(self, rotary: RotaryEmbedding, num_positions: int, device: torch.device) -> None:
        self._rotary = rotary
        self._num_positions = num_positions
        tables = [rotary.base_frequencies]
        if rotary.long_frequencies is not None:
            tables.append(rotary.long_frequencies)
        self._table = torch.empty(len(tables) * num_positions, rotary.rotary_dim, device=device)
        for i, frequencies in enumerate(tables):
            for start in range(0, num_positions, PIECE):
                positions = torch.arange(start, min(start + PIECE, num_positions))
                first = i * num_positions + start
                self._table[first : first + len(positions)] = cos_sin(positions, frequencies, rotary.scaling)
        self._base = rotary.base_frequencies.to(device)
        dim = rotary.rotary_dim
        self._exponents = (torch.arange(0, dim, 2).float() / dim).to(device)
        factors = rotary.rope.freq_factors
        self._factors = torch.tensor(factors, device=device) if factors else None

    @property
    def nbytes(self) -> int:
        return self._table.nbytes

    def prefix_cache_key(self, prompt_len: int) -> str | None:
        return self._rotary.prefix_cache_key(prompt_len)

    def rows(self, positions: torch.Tensor, rope_lens: torch.Tensor | None = None) -> RotaryRows:
        """As ``RotaryEmbedding.rows``, with both on the device."""
        rotary = self._rotary
        if not rotary.depends_on_length:
            return RotaryRows(positions, self._table)
        if rope_lens is None:
            raise ValueError(
                f"rope_lens: expected int64 [{len(positions)}] for rope type {rotary.rope.rope_type!r}"
            )
        extended = rope_lens > rotary.original_length
        if rotary.long_frequencies is not None:
            return RotaryRows(positions + extended * self._num_positions, self._table)
        base = ntk_base(rotary.rope, rotary.rotary_dim, rotary.original_length, rope_lens)
        frequencies = 1.0 / base[:, None] ** self._exponents
        if self._factors is not None:
            frequencies = frequencies / self._factors
        frequencies = torch.where(extended[:, None], frequencies, self._base)
        index = torch.arange(len(positions), device=positions.device)
        return RotaryRows(index, cos_sin(positions, frequencies, rotary.scaling))


def table_bytes(rotary: RotaryEmbedding, num_positions: int) -> int:
    """Bytes that a DeviceRotary takes."""
    count = 2 if rotary.long_frequencies is not None else 1
    return count * num_positions * rotary.rotary_dim * 4
