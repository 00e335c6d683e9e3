"""embedding: rows of a packed table, exactly."""

from __future__ import annotations

import pytest
import torch
from op_checks import assert_same_bits
from packed_weights import FORMATS, dequantised, odd_k, random_source

from inferx import ops


@pytest.mark.parametrize("integer", [torch.int64, torch.int32])
@pytest.mark.parametrize("dtype", FORMATS)
def test_rows(dtype: str, integer: torch.dtype) -> None:
    n, k = 70, odd_k(dtype, 301)
    data = random_source(dtype, n, k)
    table, weight = ops.pack_weight(data, dtype, (n, k)), dequantised(data, dtype)
    for count in (0, 1, 5, 257):
        ids = torch.randint(0, n, (count,), dtype=integer)
        assert_same_bits(ops.embedding(ids, table), weight[ids.long()])
    every = torch.arange(n, dtype=integer)
    assert_same_bits(ops.embedding(every, table), weight)


def test_threads_do_not_matter() -> None:
    data = random_source("Q8_0", 500, 576)
    table, weight = ops.pack_weight(data, "Q8_0", (500, 576)), dequantised(data, "Q8_0")
    ids = torch.randint(0, 500, (3000,))
    before = ops.get_num_threads()
    try:
        for threads in (1, 2, 5):
            ops.set_num_threads(threads)
            assert_same_bits(ops.embedding(ids, table), weight[ids])
    finally:
        ops.set_num_threads(before)


def test_out() -> None:
    data = random_source("Q4_K", 40, 256)
    table, weight = ops.pack_weight(data, "Q4_K", (40, 256)), dequantised(data, "Q4_K")
    ids = torch.tensor([3, 39, 0, 3])
    wide = torch.full((4, 300), 5.0)
    out = wide[:, 20:276]
    assert ops.embedding(ids, table, out) is out
    assert_same_bits(out, weight[ids])
    assert bool((wide[:, :20] == 5).all())
    assert bool((wide[:, 276:] == 5).all())


@pytest.mark.parametrize("integer", [torch.int64, torch.int32])
@pytest.mark.parametrize("bad", [-1, 40, 2**31 - 1, -(2**31)])
def test_id_out_of_range(bad: int, integer: torch.dtype) -> None:
    table = ops.pack_weight(torch.randn(40, 16), "F32", (40, 16))
    out = torch.full((3, 16), 5.0)
    message = rf"embedding: ids: expected 0 <= id < 40, got {bad} at index 1"
    with pytest.raises(IndexError, match=message):
        ops.embedding(torch.tensor([0, bad, 1], dtype=integer), table, out)
    assert bool((out == 5).all())


def test_id_beyond_32_bits() -> None:
    table = ops.pack_weight(torch.randn(40, 16), "F32", (40, 16))
    with pytest.raises(IndexError, match=str(2**32)):
        ops.embedding(torch.tensor([2**32]), table)


IDS = torch.zeros(3, dtype=torch.int64)
WRONG = {
    "float ids": ({"ids": IDS.float()}, "ids: expected dtype int64 or int32, got float32"),
    "two dimensions": ({"ids": IDS[None]}, r"ids: expected shape \[T\], got \[1, 3\]"),
    "ids strided": ({"ids": torch.zeros(6, dtype=torch.int64)[::2]}, "ids: expected a contiguous"),
    "out: rows": ({"out": torch.zeros(4, 16)}, r"out: expected shape \[T=3, K=16\], got \[4, 16\]"),
    "out: columns": ({"out": torch.zeros(3, 17)}, r"out: expected last dimension of shape \[K=16\]"),
    "out: dtype": ({"out": torch.zeros(3, 16).half()}, "out: expected dtype float32"),
}


@pytest.mark.parametrize("case", WRONG)
def test_refuses(case: str) -> None:
    table = ops.pack_weight(torch.randn(40, 16), "F32", (40, 16))
    change, message = WRONG[case]
    arguments = {"ids": IDS, "out": None, **change}
    with pytest.raises(ValueError, match=f"embedding: {message}"):
        ops.embedding(arguments["ids"], table, arguments["out"])


def test_refuses_a_plain_table() -> None:
    with pytest.raises(
        TypeError, match="embedding: weight: expected a PackedWeight or DenseWeight, got Tensor"
    ):
        ops.embedding(IDS, torch.zeros(40, 16))  # type: ignore[arg-type]


def test_a_dense_weight_works_on_the_cpu_too() -> None:
    table, ids = torch.randn(5, 7).bfloat16(), torch.tensor([4, 0, 4])
    weight = ops.DenseWeight(table)
    assert torch.equal(ops.embedding(ids, weight), table[ids])
    with pytest.raises(IndexError):
        ops.embedding(torch.tensor([5]), weight)
