"""From one stored tensor to the canonical tensors in it, for files of both formats."""

from __future__ import annotations

import math
from pathlib import Path

from inferx.errors import LoadError
from inferx.loader.config import ModelConfig
from inferx.loader.expert_layout import PLAIN, StackLayout, split_experts
from inferx.loader.transforms import Part, RotaryRows, Source, split_fused


def parts_of(
    canonical: str,
    stored: str,
    shape: tuple[int, ...],
    config: ModelConfig,
    path: Path,
    rotary: RotaryRows | None = None,
    layout: StackLayout = PLAIN,
) -> list[Part]:
    """canonical: the stored tensor's name as models call it, or would call it were it no stack.
    rotary: rows of a single tensor to un-interleave.  layout: of stacks of experts.
    LoadError when the shape does not allow it."""
    parts = split_fused(canonical, stored, shape, config, path) or split_experts(
        canonical, stored, shape, config, path, layout
    )
    if parts is not None:
        return parts
    if rotary is not None and (not shape or shape[0] != rotary.heads * rotary.head_rows):
        raise LoadError(
            f"{path}: tensor {stored}: expected {rotary.heads} heads of {rotary.head_rows} rows, "
            f"got shape {list(shape)}"
        )
    return [(canonical, Source(stored, rotary=rotary), _matrix_shape(canonical, shape))]


def _matrix_shape(canonical: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """GGUF has one matrix per head in the two halves of kv_b, and the gate of a shared expert as a vector."""
    if canonical.endswith((".k_b_proj.weight", ".v_b_proj.weight")) and len(shape) == 3:
        return (math.prod(shape[:2]), shape[2])
    if canonical.endswith(".mlp.shared_expert_gate.weight") and len(shape) == 1:
        return (1, *shape)
    return shape
