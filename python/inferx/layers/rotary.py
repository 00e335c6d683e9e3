"""Rotary position embedding: frequencies of every scaling type, and the cos/sin rows of a step.

Methods: RoPE (Su et al. 2021), linear interpolation (Chen et al. 2023), dynamic NTK, YaRN (Peng et al. 2023,
section 3), LongRoPE (Ding et al. 2024), and the wavelength-dependent scaling of Llama 3.1.

Frequencies and angles are rounded to float32 where transformers rounds them: at position 8,000 that rounding
is 5e-4 rad, which a more exact angle would show as a difference in the logits.  cos and sin of the rounded
angle are taken in float64, so a row has one value whatever table or batch it is computed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from inferx.loader.config import RopeConfig

# Rows of the first table; it then doubles, so growth costs little and short runs stay small.
FIRST_TABLE_ROWS = 2048
# Frequencies of dynamic NTK by sequence length: one entry for each prompt in flight and each new length.
MAX_CACHED_LENGTHS = 4096


@dataclass(frozen=True)
class RotaryRows:
    """What ``ops.rotary_embedding`` reads in one step: token t uses row ``index[t]`` of ``table``.

    index: int64 [T].  table: float32 [rows, rotary_dim], cos in the first half of a row, sin in the second.
    """

    index: torch.Tensor
    table: torch.Tensor


def rotary_dim(rope: RopeConfig, head_dim: int) -> int:
    """Leading elements of a head that rotate."""
    return int(head_dim * rope.partial_rotary_factor)


class RotaryEmbedding:
    """Cos/sin rows for one set of rotary parameters.

    max_position_embeddings: the context limit; where the parameters name no original length, it is that too.

    Three kinds of types: those with one set of frequencies; longrope, with a short and a long set; and
    dynamic, whose frequencies depend on the length itself.  The last two need ``rope_lens``: the sequence
    length that each token's frequencies are computed for.
    """

    def __init__(self, rope: RopeConfig, head_dim: int, max_position_embeddings: int) -> None:
        self.rope = rope
        self.rotary_dim = rotary_dim(rope, head_dim)
        self.max_position_embeddings = max_position_embeddings
        self.original_length = rope.original_max_position_embeddings or max_position_embeddings
        self.scaling = attention_scaling(rope, self.original_length)
        self.base_frequencies = self._frequencies()
        self.long_frequencies = self._frequencies(long=True) if rope.rope_type == "longrope" else None
        self._base_table = torch.empty(0, self.rotary_dim)
        self._long_table = torch.empty(0, self.rotary_dim)
        self._by_length: dict[int, torch.Tensor] = {}

    @property
    def depends_on_length(self) -> bool:
        """Whether ``rows`` needs ``rope_lens``."""
        return self.rope.rope_type in ("dynamic", "longrope")

    def prefix_cache_key(self, prompt_len: int) -> str | None:
        """Differs between prompts whose keys of the same tokens differ; None for the common case."""
        if not self.depends_on_length or prompt_len <= self.original_length:
            return None
        return "longrope" if self.long_frequencies is not None else f"dynamic:{prompt_len}"

    def rows(self, positions: torch.Tensor, rope_lens: torch.Tensor | None = None) -> RotaryRows:
        """positions, rope_lens: int64 [T].  Raises ValueError without rope_lens where the type needs them."""
        if positions.numel() == 0:
            return RotaryRows(positions, self._base_table[:0])
        needed = int(positions.max()) + 1
        if len(self._base_table) < needed:
            self._base_table = self._table(self.base_frequencies, needed)
        if not self.depends_on_length:
            return RotaryRows(positions, self._base_table)
        if rope_lens is None:
            raise ValueError(
                f"rope_lens: expected int64 [{len(positions)}] for rope type {self.rope.rope_type!r}"
            )
        if int(rope_lens.max()) <= self.original_length:
            return RotaryRows(positions, self._base_table)
        return RotaryRows(torch.arange(len(positions)), self._rows_by_length(positions, rope_lens, needed))

    def _rows_by_length(self, positions: torch.Tensor, rope_lens: torch.Tensor, needed: int) -> torch.Tensor:
        """One row for each token, float32 [T, rotary_dim]."""
        table = self._base_table[positions]
        extended = (rope_lens > self.original_length).nonzero().flatten()
        if self.long_frequencies is not None:
            if len(self._long_table) < needed:
                self._long_table = self._table(self.long_frequencies, needed)
            table[extended] = self._long_table[positions[extended]]
            return table
        lengths, inverse = torch.unique(rope_lens[extended], return_inverse=True)
        frequencies = torch.stack([self._frequencies_at(length) for length in lengths.tolist()])
        table[extended] = cos_sin(positions[extended], frequencies[inverse], self.scaling)
        return table

    def _table(self, frequencies: torch.Tensor, needed: int) -> torch.Tensor:
        count = FIRST_TABLE_ROWS
        while count < needed:
            count *= 2
        count = max(needed, min(count, self.max_position_embeddings))
        return cos_sin(torch.arange(count), frequencies, self.scaling)

    def _frequencies_at(self, length: int) -> torch.Tensor:
        cached = self._by_length.get(length)
        if cached is None:
            if len(self._by_length) >= MAX_CACHED_LENGTHS:
                self._by_length.clear()
            cached = self._by_length[length] = self._frequencies(length)
        return cached

    def _frequencies(self, length: int | None = None, long: bool = False) -> torch.Tensor:
        frequencies = inverse_frequencies(
            self.rope, self.rotary_dim, self.original_length, length=length, long=long
        )
        factors = self.rope.freq_factors
        return frequencies / torch.tensor(factors) if factors else frequencies


def inverse_frequencies(
    rope: RopeConfig,
    dim: int,
    original_length: int,
    *,
    length: int | None = None,
    long: bool = False,
) -> torch.Tensor:
    """Radians per position, float32 [dim / 2].

    length: for dynamic NTK, the sequence length.  long: for longrope, which of its two sets.
    """
    theta: float | torch.Tensor = rope.theta
    if rope.rope_type == "dynamic" and length is not None and length > original_length:
        theta = ntk_base(rope, dim, original_length, torch.tensor(length))
    wavelengths = theta ** (torch.arange(0, dim, 2).float() / dim)
    if rope.rope_type == "longrope":
        return 1.0 / (torch.tensor(rope.long_factor if long else rope.short_factor) * wavelengths)
    if rope.rope_type == "yarn":
        return _yarn(rope, dim, original_length, wavelengths)
    frequencies = 1.0 / wavelengths
    if rope.rope_type == "linear":
        return frequencies / rope.factor
    if rope.rope_type == "llama3":
        return _llama3(rope, original_length, frequencies)
    return frequencies


def attention_scaling(rope: RopeConfig, original_length: int) -> float:
    """The factor on cos and sin (so its square is on the attention scores)."""
    if rope.rope_type not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    factor = rope.factor
    if rope.rope_type == "longrope":
        return math.sqrt(1 + math.log(factor) / math.log(original_length)) if factor > 1 else 1.0
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(factor, rope.mscale) / _mscale(factor, rope.mscale_all_dim)
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def ntk_base(rope: RopeConfig, dim: int, original_length: int, length: torch.Tensor) -> torch.Tensor:
    """The base that stretches the longest wavelength to ``length`` (int64), rounded to float32."""
    stretch = rope.factor * length / original_length - (rope.factor - 1)
    return rope.theta * stretch ** (dim / (dim - 2))


def _llama3(rope: RopeConfig, original_length: int, frequencies: torch.Tensor) -> torch.Tensor:
    """Long wavelengths are interpolated, short ones kept, those between blended."""
    wavelengths = 2 * math.pi / frequencies
    turns = original_length / wavelengths
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    is_long = wavelengths > original_length / rope.low_freq_factor
    is_short = wavelengths < original_length / rope.high_freq_factor
    scaled = torch.where(is_long, frequencies / rope.factor, blended)
    return torch.where(is_short, frequencies, scaled)


def _yarn(rope: RopeConfig, dim: int, original_length: int, wavelengths: torch.Tensor) -> torch.Tensor:
    """Dimensions that turn often within the original length are kept, those that do not are interpolated."""

    def dimension_with(turns: float) -> float:
        return dim * math.log(original_length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension_with(rope.beta_fast), dimension_with(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step, not a division by zero
    kept = 1 - ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
    return 1.0 / (rope.factor * wavelengths) * (1 - kept) + 1.0 / wavelengths * kept


def cos_sin(positions: torch.Tensor, frequencies: torch.Tensor, scaling: float) -> torch.Tensor:
    """float32 [T, dim] of positions [T] and frequencies [dim / 2] or [T, dim / 2]."""
    angles = (positions.float()[:, None] * frequencies).double()
    table = torch.empty(len(positions), 2 * angles.shape[1], device=positions.device)
    table[:, : angles.shape[1]] = angles.cos()
    table[:, angles.shape[1] :] = angles.sin()
    return table.mul_(scaling) if scaling != 1.0 else table
