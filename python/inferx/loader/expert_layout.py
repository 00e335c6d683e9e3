"""Experts of a layer that the file stores in one tensor, as row ranges one by one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from inferx.errors import LoadError
from inferx.loader import mxfp4
from inferx.loader.config import ModelConfig
from inferx.loader.transforms import Part, Source

_STACKED = re.compile(r"(.*\.mlp\.experts)\.(gate_up|gate|up|down)_proj\.(weight|bias)")
_PARTS = {"gate_up": ("gate", "up"), "gate": ("gate",), "up": ("up",), "down": ("down",)}


@dataclass(frozen=True)
class StackLayout:
    """What gpt-oss does differently from everyone else.

    transposed: matrices are ``[columns, rows]``.  alternating: gate's and up's rows take turns, in the biases
    too.  scales: matrices are blocks of MXFP4, whose exponents are in the tensor of that name.
    """

    transposed: bool = False
    alternating: bool = False
    scales: str | None = None


PLAIN = StackLayout()


def split_experts(
    canonical: str,
    stored: str,
    shape: tuple[int, ...],
    config: ModelConfig,
    path: Path,
    layout: StackLayout = PLAIN,
) -> list[Part] | None:
    """For a stack of experts: [(canonical name, its rows, shape)] of each; None for all other tensors.

    A stack is ``[experts, rows, columns]`` (biases ``[experts, rows]``), in gate_up the gate's rows before
    the up's, unless ``layout`` says otherwise.  LoadError when the shape is not what the configuration says.
    """
    match, moe = _STACKED.fullmatch(canonical), config.moe
    if match is None or moe is None:
        return None
    stem, projection, kind = match.groups()
    names = _PARTS[projection]
    down = projection == "down"
    part_rows = config.hidden_size if down else moe.intermediate_size
    columns = moe.intermediate_size if down else config.hidden_size
    rows = part_rows * len(names)
    matrix: tuple[int, ...] = (columns, rows) if layout.transposed else (rows, columns)
    if layout.scales is not None:
        matrix = mxfp4.stored_shape(rows, columns, f"{path}: tensor {stored}")
    expected = (moe.num_experts, *matrix) if kind == "weight" else (moe.num_experts, rows)
    if shape != expected:
        raise LoadError(
            f"{path}: tensor {stored}: expected shape {list(expected)} for {moe.num_experts} experts, "
            f"got {list(shape)}"
        )
    part_shape: tuple[int, ...] = (part_rows, columns) if kind == "weight" else (part_rows,)
    result: list[Part] = []
    for expert in range(moe.num_experts):
        for index, name in enumerate(names):
            start = expert * rows + index * part_rows
            source = Source(stored, rows=(start, start + part_rows))
            if layout.transposed and kind == "weight":
                span = (expert * columns, (expert + 1) * columns)
                source = Source(stored, rows=span, columns=(index, len(names)))
            elif layout.alternating:
                span = (expert * rows + index, (expert + 1) * rows)
                scales = layout.scales if kind == "weight" else None
                source = Source(stored, rows=span, row_step=len(names), scales=scales)
            result.append((f"{stem}.{expert}.{name}_proj.{kind}", source, part_shape))
    return result
