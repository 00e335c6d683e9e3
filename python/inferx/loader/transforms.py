"""How a canonical tensor is cut out of what the file stores.

Two things differ between files and the one naming that models see: some families store fused matrices
(Phi-3's qkv and gate_up), and llama.cpp reorders the rows of q and k for interleaved rotary.  Both are
choices of rows, so they work on quantised rows as on floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from inferx.errors import LoadError
from inferx.loader.config import ModelConfig


@dataclass(frozen=True)
class Source:
    """``rows`` [start, stop) of the stored tensor, None = all; ``heads``: un-interleave each head's rotary
    rows."""

    stored: str
    rows: tuple[int, int] | None = None
    heads: int | None = None


def split_fused(
    canonical: str, stored: str, shape: tuple[int, ...], config: ModelConfig, path: Path
) -> list[tuple[str, Source, tuple[int, ...]]] | None:
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


def uninterleave(data: torch.Tensor, heads: int, rotary_dim: int) -> torch.Tensor:
    """Rows of each head from (0, 1), (2, 3), ... pairs to halves: evens first, then odds.

    data: ``[heads * head_dim, ...]``.  Only the first ``rotary_dim`` rows of a head are paired; the rest
    stay.
    """
    head_dim = data.shape[0] // heads
    order = torch.cat(
        [torch.arange(0, rotary_dim, 2), torch.arange(1, rotary_dim, 2), torch.arange(rotary_dim, head_dim)]
    )
    index = (torch.arange(heads)[:, None] * head_dim + order[None, :]).reshape(-1)
    return data.index_select(0, index)
