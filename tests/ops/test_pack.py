"""pack_weight: the packed matrix holds exactly the checkpoint's values, in the checkpoint's size."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from op_checks import assert_same_bits
from packed_weights import (
    FLOATS,
    FORMATS,
    HALF_SCALED,
    SCALES,
    block_size,
    dequantised,
    odd_k,
    random_source,
    with_scales,
)

from inferx import ops


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("k", [1, 37, 256, 300, 769])
@pytest.mark.parametrize("n", [1, 31, 32, 33, 70])
def test_values(n: int, k: int, dtype: str) -> None:
    k = odd_k(dtype, k)
    data = random_source(dtype, n, k)
    before = data.clone()
    packed = ops.pack_weight(data, dtype, (n, k))
    assert (packed.shape, packed.dtype) == ((n, k), dtype)
    assert_same_bits(packed.dequantize(), dequantised(data, dtype))
    assert torch.equal(data, before)


def test_every_mxfp4_scale_and_code() -> None:
    """All 256 exponents times all 16 codes, as gguf has them; products likewise."""
    exponents = torch.arange(256, dtype=torch.uint8).repeat_interleave(2)
    low = torch.arange(16, dtype=torch.uint8)
    data = torch.cat([exponents[:, None], (low | (15 - low) << 4).expand(512, 16)], dim=1)
    packed, expected = ops.pack_weight(data, "MXFP4", (512, 32)), dequantised(data, "MXFP4")
    assert_same_bits(packed.dequantize(), expected)
    assert_same_bits(ops.linear(torch.eye(32), packed), expected.t().contiguous() + 0.0)


@pytest.mark.parametrize("dtype", HALF_SCALED)
def test_every_finite_scale(dtype: str) -> None:
    """Subnormal, largest, negative and zero scales, each in every one of its places."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    n, blocks = 64, 31
    k = blocks * block_size(dtype)
    for turn in range(len(SCALES[dtype])):
        scales = np.random.choice(halves, (n, blocks, len(SCALES[dtype])))
        scales[..., turn] = np.resize(np.random.permutation(halves), (n, blocks))
        data = with_scales(random_source(dtype, n, k), dtype, scales)
        assert_same_bits(ops.pack_weight(data, dtype, (n, k)).dequantize(), dequantised(data, dtype))


@pytest.mark.parametrize("dtype", HALF_SCALED)
def test_infinite_and_nan_scales(dtype: str) -> None:
    n, k = 33, 2 * block_size(dtype)
    scales = np.full((n, 2, len(SCALES[dtype])), 0.5, np.float16)
    scales[1, 0], scales[2, 1], scales[32, 0] = np.inf, np.nan, -np.inf
    data = with_scales(random_source(dtype, n, k), dtype, scales)
    packed, expected = ops.pack_weight(data, dtype, (n, k)), dequantised(data, dtype)
    assert torch.equal(packed.dequantize().isnan(), expected.isnan())
    assert torch.equal(packed.dequantize().nan_to_num(7.0), expected.nan_to_num(7.0))
    # They stay in their columns of a product.
    x = torch.rand(2, k)
    y = ops.linear(x, packed)
    finite = torch.ones(n, dtype=torch.bool)
    finite[[1, 2, 32]] = False
    assert torch.equal(y.isfinite(), finite.expand(2, n))


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_every_16_bit_float(dtype: str) -> None:
    data = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(FLOATS[dtype]).reshape(256, 256)
    dequantize = ops.pack_weight(data, dtype, (256, 256)).dequantize()
    nan = data.isnan()
    assert torch.equal(dequantize.isnan(), nan)
    assert_same_bits(dequantize[~nan], data.float()[~nan])


@pytest.mark.parametrize("dtype", FORMATS)
def test_size(dtype: str) -> None:
    n, k = 64, 768
    data = random_source(dtype, n, k)
    extra = {"Q4_K": 4 / 144, "Q5_K": 4 / 176}.get(dtype, 0)  # 6-bit scales become bytes
    assert ops.pack_weight(data, dtype, (n, k)).nbytes == round(data.nbytes * (1 + extra))


@pytest.mark.parametrize("dtype", ["F32", "BF16", "Q4_1", "Q6_K"])
def test_source_views(dtype: str) -> None:
    n, k = 45, 512
    data = random_source(dtype, 2 * n, k)
    expected = dequantised(data, dtype)
    every_other = ops.pack_weight(data[::2], dtype, (n, k))
    assert_same_bits(every_other.dequantize(), expected[::2])
    wide = torch.cat([data, data], dim=1)
    assert_same_bits(ops.pack_weight(wide[:, : data.shape[1]], dtype, (2 * n, k)).dequantize(), expected)
    data.zero_()  # the packed copy is its own
    wide.zero_()
    assert_same_bits(every_other.dequantize(), expected[::2])


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_read_only_and_unaligned_source() -> None:
    data = random_source("Q8_0", 33, 64)
    memory = b"x" + data.numpy().tobytes()  # bytes are read-only
    view = torch.frombuffer(memory, dtype=torch.uint8, offset=1).reshape(data.shape)
    assert_same_bits(ops.pack_weight(view, "Q8_0", (33, 64)).dequantize(), dequantised(data, "Q8_0"))


@pytest.mark.parametrize("dtype", ["F16", "Q4_1", "Q5_K"])
def test_threads_do_not_matter(dtype: str) -> None:
    n, k = 333, 1024
    data = random_source(dtype, n, k)
    before = ops.get_num_threads()
    try:
        for threads in (1, 2, 5):
            ops.set_num_threads(threads)
            packed = ops.pack_weight(data, dtype, (n, k))
            assert_same_bits(packed.dequantize(), dequantised(data, dtype))
    finally:
        ops.set_num_threads(before)


BYTES = torch.zeros(4, 18 * 2, dtype=torch.uint8)
WRONG = {
    "unknown type": (BYTES, "Q3_K", (4, 64), "dtype: expected one of F32, F16, .*, got 'Q3_K'"),
    "lower case": (BYTES, "q4_0", (4, 64), "dtype: expected one of"),
    "not whole blocks": (BYTES, "Q4_0", (4, 48), "shape: .*multiple of Q4_0's block of 32, got .4, 48"),
    "not whole superblocks": (BYTES, "Q4_K", (4, 64), "multiple of Q4_K's block of 256"),
    "row too short": (BYTES, "Q4_0", (4, 96), r"data: expected shape \[4, 54\], got \[4, 36\]"),
    "row too long": (BYTES, "Q4_0", (4, 32), r"data: expected shape \[4, 18\], got \[4, 36\]"),
    "too few rows": (BYTES, "Q4_0", (5, 64), r"data: expected shape \[5, 36\]"),
    "flat": (BYTES.flatten(), "Q4_0", (4, 64), r"data: expected shape \[4, 36\], got \[144\]"),
    "floats for blocks": (torch.zeros(4, 36), "Q4_0", (4, 64), "data: expected dtype uint8, got float32"),
    "bytes for floats": (BYTES, "F32", (4, 36), "data: expected dtype float32, got uint8"),
    "other float": (torch.zeros(4, 36).half(), "BF16", (4, 36), "data: expected dtype bfloat16, got float16"),
    "columns strided": (torch.zeros(4, 72)[:, ::2], "F32", (4, 36), "data: expected a contiguous last dim"),
    "no rows": (torch.zeros(0, 36), "F32", (0, 36), r"shape: .*at least 1.*got \[0, 36\]"),
    "no columns": (torch.zeros(4, 0), "F32", (4, 0), r"shape: .*at least 1.*got \[4, 0\]"),
    "negative": (BYTES, "Q4_0", (-4, 64), r"shape: .*got \[-4, 64\]"),
    "overflow": (BYTES, "Q4_0", (1 << 31, 1 << 31), "shape: .*of a size that can exist"),
    "three sizes": (BYTES, "Q4_0", (4, 64, 1), r"shape: expected \(N, K\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refuses(case: str) -> None:
    data, dtype, shape, message = WRONG[case]
    with pytest.raises(ValueError) as caught:
        ops.pack_weight(data, dtype, shape)
    assert re.search(message, str(caught.value)), caught.value
    assert str(caught.value).startswith("pack_weight: ")


def test_refuses_what_is_no_tensor() -> None:
    with pytest.raises(TypeError):
        ops.pack_weight(BYTES.numpy(), "Q4_0", (4, 64))  # type: ignore[arg-type]
