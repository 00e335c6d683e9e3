"""Weights of every format, as a checkpoint stores them, with what they mean in float32."""

from __future__ import annotations

import gguf
import numpy as np
import torch
from torch import Tensor

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Where each block has its half-precision scales.
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
HALF_SCALED = list(SCALES)
QUANTISED = [*HALF_SCALED, "MXFP4"]
FORMATS = [*FLOATS, *QUANTISED]


def block_size(dtype: str) -> int:
    """Elements per block; 1 for floats."""
    return 1 if dtype in FLOATS else gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]][0]


def row_bytes(dtype: str, k: int) -> int:
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]
    return k // block * size


def dequantised(data: Tensor, dtype: str) -> Tensor:
    """The oracle: gguf's own dequantisation, or torch's widening."""
    if dtype in FLOATS:
        return data.float().clone()
    with np.errstate(all="ignore"):
        return torch.from_numpy(gguf.quants.dequantize(data.numpy(), gguf.GGMLQuantizationType[dtype]))


def with_scales(data: Tensor, dtype: str, scales: np.ndarray) -> Tensor:
    """Block data with its scales replaced: float16 [rows, blocks, number of scales]."""
    size = row_bytes(dtype, block_size(dtype))
    blocks = data.numpy().reshape(data.shape[0], -1, size).copy()
    for i, offset in enumerate(SCALES[dtype]):
        blocks[..., offset : offset + 2] = scales[..., i, None].astype("<f2").view(np.uint8)
    return torch.from_numpy(blocks.reshape(data.shape))


def random_source(dtype: str, n: int, k: int) -> Tensor:
    """Checkpoint data of an [n, k] matrix: random bits with scales of a usual size."""
    if dtype in FLOATS:
        return torch.randn(n, k).to(FLOATS[dtype])
    data = torch.randint(0, 256, (n, row_bytes(dtype, k)), dtype=torch.uint8)
    blocks = k // block_size(dtype)
    if dtype == "MXFP4":  # exponents of 2^-10 to 2^-4
        data[:, :: row_bytes(dtype, block_size(dtype))] = torch.randint(117, 124, (n, blocks)).byte()
        return data
    scales = np.random.standard_normal((n, blocks, len(SCALES[dtype]))) * 0.01
    return with_scales(data, dtype, scales.astype(np.float16))


def odd_k(dtype: str, wanted: int) -> int:
    """``wanted`` for floats, else the multiple of the block size that is next to it."""
    block = block_size(dtype)
    return max(block, wanted // block * block)
