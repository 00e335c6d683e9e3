"""MXFP4 as Hugging Face files store it, and as GGML's blocks.

32 values of 4 bits (E2M1) share a power of two, stored as its exponent plus 127 (Open Compute Project,
"OCP Microscaling Formats Specification", 2023).  Hugging Face has two uint8 tensors: blocks
``[..., blocks of a row, 16]``, where a byte holds two neighbouring values, the first in its low half, and
scales ``[..., blocks of a row]``.  GGML has the exponent in front of its block's 16 bytes, where a byte holds
values i and i + 16.
"""

from __future__ import annotations

import torch

from inferx.errors import LoadError

BLOCKS, SCALES = "_blocks", "_scales"
BLOCK = 32  # values
BLOCK_BYTES = 16  # without the exponent
_NOT_A_NUMBER = 255


def stored_shape(rows: int, columns: int, where: str) -> tuple[int, int, int]:
    """Of the blocks of a matrix.  LoadError, which starts with ``where``, when rows are not whole blocks."""
    if columns % BLOCK:
        raise LoadError(f"{where}: rows of {columns} elements are no multiple of MXFP4's {BLOCK}")
    return rows, columns // BLOCK, BLOCK_BYTES


def ggml_rows(blocks: torch.Tensor, scales: torch.Tensor, where: str) -> torch.Tensor:
    """uint8 [rows, bytes per row] of a matrix's blocks [rows, n, 16] and scales [rows, n].

    LoadError, which starts with ``where``, for the exponent that stands for no number.
    """
    if bool((scales == _NOT_A_NUMBER).any()):
        raise LoadError(f"{where}: has the exponent {_NOT_A_NUMBER}, which stands for no number")
    first, second = blocks.split(BLOCK_BYTES // 2, dim=2)  # values 0 to 15, and 16 to 31
    result = torch.empty(*scales.shape, 1 + BLOCK_BYTES, dtype=torch.uint8)
    result[..., 0] = scales
    result[..., 1::2] = first & 0x0F | second << 4
    result[..., 2::2] = first >> 4 | second & 0xF0
    return result.flatten(1)
