"""Quantised blocks whose scales are not finite: refused by name, whatever the type and wherever the block."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_writer import round_to_blocks, write_gguf
from model_harness import load, tiny_model
from moe_configs import gpt_oss, mixtral
from tests.ops.packed_weights import (
    HALF_SCALED,
    QUANTISED,
    SCALES,
    block_size,
    dequantised,
    random_source,
    row_bytes,
)

from inferx.errors import LoadError
from inferx.loader.block_scales import MAX_EXPONENT, check_scales
from inferx.loader.checkpoint import RawTensor, TensorInfo

ROWS, COLUMNS = 7, 768


def raw(data: torch.Tensor, dtype: str) -> RawTensor:
    return RawTensor(TensorInfo("some.weight", (len(data), COLUMNS), dtype, Path("some.gguf")), data)


def with_bytes(data: torch.Tensor, dtype: str, row: int, block: int, at: int, value: bytes) -> torch.Tensor:
    data = data.clone()
    start = block * row_bytes(dtype, block_size(dtype)) + at
    data[row, start : start + len(value)] = torch.tensor(list(value), dtype=torch.uint8)
    return data


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("dtype", "at"), [(name, at) for name in HALF_SCALED for at in SCALES[name]])
def test_half_scales(dtype: str, at: int, value: float) -> None:
    data = random_source(dtype, ROWS, COLUMNS)
    last = COLUMNS // block_size(dtype) - 1
    for row, block in ((0, 0), (3, 1), (ROWS - 1, last)):
        broken = with_bytes(data, dtype, row, block, at, np.float16(value).tobytes())
        assert not dequantised(broken, dtype).isfinite().all()
        with pytest.raises(
            LoadError,
            match=rf"some\.gguf: tensor some\.weight: expected finite {dtype} scales, got .*(nan|inf)",
        ):
            check_scales(raw(broken, dtype))
        # Rows of other experts, at an offset in the file.
        check_scales(raw(broken[row + 1 :], dtype))
        check_scales(raw(broken[:row], dtype))


@pytest.mark.parametrize("dtype", QUANTISED)
def test_finite_scales_pass(dtype: str) -> None:
    """Codes of any bits, NaN's among them, beside the largest scales."""
    data = torch.full((ROWS, row_bytes(dtype, COLUMNS)), 255, dtype=torch.uint8)
    largest = np.finfo(np.float16).max
    for block in range(COLUMNS // block_size(dtype)):
        for row in range(ROWS):
            if dtype == "MXFP4":
                data = with_bytes(data, dtype, row, block, 0, bytes([MAX_EXPONENT]))
            for at in SCALES.get(dtype, ()):
                data = with_bytes(data, dtype, row, block, at, np.float16((-1) ** row * largest).tobytes())
    assert dequantised(data, dtype).isfinite().all()
    check_scales(raw(data, dtype))


@pytest.mark.parametrize("exponent", range(MAX_EXPONENT + 1, 256))
def test_exponents(exponent: int) -> None:
    data = with_bytes(random_source("MXFP4", ROWS, COLUMNS), "MXFP4", 2, 5, 0, bytes([exponent, 0x77]))
    message = rf"tensor some\.weight: expected MXFP4 exponents up to {MAX_EXPONENT}, got {exponent}"
    with pytest.raises(LoadError, match=message):
        check_scales(raw(data, "MXFP4"))


@pytest.mark.parametrize(
    ("dtype", "stored", "name"),
    [
        ("Q8_0", "blk.1.attn_q.weight", r"layers\.1\.self_attn\.q_proj"),
        ("Q4_0", "blk.0.ffn_up_exps.weight", r"layers\.0\.mlp\.experts\.1\.up_proj"),
        ("Q8_0", "token_embd.weight", r"embed_tokens"),
        ("MXFP4", "blk.1.ffn_down_exps.weight", r"layers\.1\.mlp\.experts\.1\.down_proj"),
    ],
)
def test_loading_names_file_and_tensor(dtype: str, stored: str, name: str, tmp_path: Path) -> None:
    def type_of(tensor: str) -> str:
        return dtype if tensor.endswith(("_proj.weight", "embed_tokens.weight")) else "F32"

    family, architecture = (gpt_oss, "gpt-oss") if dtype == "MXFP4" else (mixtral, "llama")
    model = tiny_model(family(hidden_size=64, intermediate_size=64), seed=1)
    blocks = round_to_blocks(model, architecture, type_of)
    load(write_gguf(model, tmp_path / "good.gguf", architecture, type_of, blocks=blocks))
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]][1]
    row = blocks[stored][1, 3] if "exps" in stored else blocks[stored][3]
    row[size : size + 2] = (255, 255)  # NaN's bits in either
    path = write_gguf(model, tmp_path / "bad.gguf", architecture, type_of, blocks=blocks)
    with pytest.raises(LoadError, match=rf"bad\.gguf: tensor model\.{name}\.weight: expected .*{dtype}"):
        load(path)
