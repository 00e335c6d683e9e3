"""How a canonical tensor is cut out of what the file stores.

Files differ from the one naming that models see in three ways: some families store fused matrices (Phi-3's
qkv and gate_up) or all experts in one tensor, and rows of q and k may lie in the order of interleaved rotary.
All are choices of rows, so they work on quantised rows as on floats; gpt-oss alone stores its experts
transposed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from inferx.errors import LoadError
from inferx.loader.config import ModelConfig


@dataclass(frozen=True)
class RotaryRows:
    """``count`` rows from row ``first`` of each of ``heads`` heads rotate, and lie in pairs (0, 1), (2, 3),
    ...; a head has ``head_rows`` rows."""

    heads: int
    first: int
    count: int
    head_rows: int


@dataclass(frozen=True)
class Source:
    """Where a canonical tensor lies in a stored one, which is seen with all leading dimensions as rows.

    rows: [start, stop), every ``row_step``-th; None = all.  columns: (first, step), for matrices stored
    transposed: after the choice of rows, these columns are the rows of the result.  rotary: un-interleave.
    scales: the other half of a tensor of MXFP4 blocks (``mxfp4``), whose rows are chosen alike.
    """

    stored: str
    rows: tuple[int, int] | None = None
    row_step: int = 1
    columns: tuple[int, int] | None = None
    rotary: RotaryRows | None = None
    scales: str | None = None


Part = tuple[str, Source, tuple[int, ...]]  # canonical name, where it is, its shape


def cut(data: torch.Tensor, source: Source, shape: tuple[int, ...]) -> torch.Tensor:
    """The canonical tensor of that shape out of the stored one; block formats come and go as uint8 rows.

    A view of ``data`` unless rows change their order or turn into columns; contiguous always.
    """
    if data.dim() > len(shape):
        data = data.flatten(0, data.dim() - len(shape))
    if source.rows is not None:
        data = data[source.rows[0] : source.rows[1] : source.row_step]
    if source.columns is not None:
        data = data.T[source.columns[0] :: source.columns[1]]
    if source.rotary is not None:
        rotary = source.rotary
        data = uninterleave(data, rotary.heads, rotary.count, rotary.first)
    if data.dim() < len(shape):
        data = data.reshape(shape)
    return data.contiguous()


def split_fused(
    canonical: str, stored: str, shape: tuple[int, ...], config: ModelConfig, path: Path
) -> list[Part] | None:
    """For a fused projection: [(canonical name, its rows, shape)], in stored order; None for all others.

    canonical: the name the fused tensor would have.  LoadError when its rows are not the parts' sum.
    """
    stem, _, kind = canonical.rpartition(".")
    parts = _fused_parts(stem, config)
    if parts is None:
        return None
    expected = sum(rows for _, rows in parts)
    if not shape or shape[0] != expected:
        names = ", ".join(part for part, _ in parts)
        raise LoadError(
            f"{path}: tensor {stored}: expected {expected} rows for {names}, got shape {list(shape)}"
        )
    result, start = [], 0
    for part, rows in parts:
        result.append((f"{part}.{kind}", Source(stored, rows=(start, start + rows)), (rows, *shape[1:])))
        start += rows
    return result


def _fused_parts(stem: str, config: ModelConfig) -> list[tuple[str, int]] | None:
    if stem.endswith(".self_attn.qkv_proj"):
        base = stem.removesuffix("qkv_proj")
        kv_rows = config.num_key_value_heads * config.head_dim
        return [
            (base + "q_proj", config.num_attention_heads * config.head_dim),
            (base + "k_proj", kv_rows),
            (base + "v_proj", kv_rows),
        ]
    if stem.endswith(".mlp.gate_up_proj"):
        base = stem.removesuffix("gate_up_proj")
        return [(base + "gate_proj", config.intermediate_size), (base + "up_proj", config.intermediate_size)]
    return None


def uninterleave(data: torch.Tensor, heads: int, rotary_dim: int, first: int = 0) -> torch.Tensor:
    """Rows of each head from (0, 1), (2, 3), ... pairs to halves: evens first, then odds.

    data: ``[heads * head_dim, ...]``.  Only ``rotary_dim`` rows of a head, from row ``first``, are paired;
    the rest stay.
    """
    head_dim = data.shape[0] // heads
    last = first + rotary_dim
    spans = ((0, first, 1), (first, last, 2), (first + 1, last, 2), (last, head_dim, 1))
    order = torch.cat([torch.arange(*span) for span in spans])
    index = (torch.arange(heads)[:, None] * head_dim + order[None, :]).reshape(-1)
    return data.index_select(0, index)
