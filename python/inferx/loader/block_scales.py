"""The scales inside of GGML's quantised blocks: one that is not finite makes all values of its block so."""

from __future__ import annotations

import math

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from inferx.errors import LoadError
from inferx.loader.checkpoint import RawTensor

# Where a block has its half-precision scales (d, and m or dmin behind it): first byte, and end.
HALF_SCALES = {
    "Q4_0": (0, 2),
    "Q4_1": (0, 4),
    "Q5_0": (0, 2),
    "Q5_1": (0, 4),
    "Q8_0": (0, 2),
    "Q4_K": (0, 4),
    "Q5_K": (0, 4),
    "Q6_K": (208, 210),
}
# Of MXFP4, whose blocks begin with it: 6 times 2^(252 - 127) is the largest that float32 holds; 255 is NaN.
MAX_EXPONENT = 252


def check_scales(raw: RawTensor) -> None:
    """LoadError when a block of a quantised tensor has a scale that is not finite, or values that are not."""
    if not raw.data.numel():
        return
    dtype, where = raw.info.dtype, f"{raw.info.file}: tensor {raw.info.name}"
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[dtype]]
    blocks = raw.data.unflatten(1, (-1, size))
    if dtype == "MXFP4":
        exponent = int(blocks[..., 0].max())
        if exponent > MAX_EXPONENT:
            raise LoadError(f"{where}: expected MXFP4 exponents up to {MAX_EXPONENT}, got {exponent}")
        return
    start, end = HALF_SCALES[dtype]
    # A view: all these blocks are of an even number of bytes.  Both of the two are NaN where one scale is.
    low, high = blocks[..., start:end].view(torch.float16).aminmax()
    if not math.isfinite(low) or not math.isfinite(high):
        raise LoadError(f"{where}: expected finite {dtype} scales, got {low:.4g} to {high:.4g}")
