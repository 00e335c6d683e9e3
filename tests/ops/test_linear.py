"""linear against float64, and one result per row whatever surrounds it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from op_checks import assert_same_bits, check_on_instruction_set, strided_views
from packed_weights import FORMATS, SCALES, block_size, dequantised, odd_k, random_source, with_scales
from torch import Tensor

from inferx import ops
from inferx.ops import PackedWeight

ROWS = [
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    17,
    40,
    130,
]  # around the panels' sizes, and beyond a block of them


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = ops.get_num_threads()
    yield
    ops.set_num_threads(before)


def make(dtype: str, n: int, k: int) -> tuple[PackedWeight, Tensor]:
    data = random_source(dtype, n, k)
    return ops.pack_weight(data, dtype, (n, k)), dequantised(data, dtype)


def assert_linear(y: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Off by less than eight float32 roundings of the sum of all terms' magnitudes.

    Sums have at most 128 terms and so have the sums of sums, so that rounding errors hardly add up."""
    expected, size = x.double() @ weight.double().T, x.double().abs() @ weight.double().abs().T
    if bias is not None:
        expected, size = expected + bias.double(), size + bias.double().abs()
    error = (y.double() - expected).abs()
    assert y.shape == expected.shape
    assert bool((error <= 8 * 2.0**-24 * size).all()), (error / size).max().item() * 2**24


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("k", [1, 33, 128, 257, 1027])
@pytest.mark.parametrize("n", [1, 32, 45, 100])
def test_values(n: int, k: int, dtype: str) -> None:
    k = odd_k(dtype, k)
    packed, weight = make(dtype, n, k)
    bias = torch.randn(n)
    for rows in ROWS:
        x = torch.randn(rows, k)
        assert_linear(ops.linear(x, packed), x, weight)
        assert_linear(ops.linear(x, packed, bias), x, weight, bias)


@pytest.mark.parametrize("dtype", ["F32", "Q4_1", "Q6_K"])
def test_long_sums(dtype: str) -> None:
    packed, weight = make(dtype, 33, 8192)
    x = torch.randn(19, 8192)
    assert_linear(ops.linear(x, packed), x, weight)


@pytest.mark.parametrize("dtype", FORMATS)
def test_each_code_at_each_place(dtype: str) -> None:
    """A row of x that is one 1 and else 0 picks out one column of the matrix, so nothing can average out."""
    block = max(block_size(dtype), 32)
    packed, weight = make(dtype, 65, 2 * block)
    y = ops.linear(torch.eye(2 * block), packed)
    exact = weight.T.contiguous()
    if len(SCALES.get(dtype, ())) == 2:  # code * scale + minimum: the terms are added the other way round
        assert torch.allclose(y, exact, rtol=0, atol=float(exact.abs().max()) * 2**-22)
    else:
        assert torch.equal(y, exact)
    for i in (0, 5, 2 * block - 1):
        assert_same_bits(ops.linear(torch.eye(2 * block)[i : i + 1], packed), y[i : i + 1])


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_row_has_one_result(dtype: str) -> None:
    """Alone, in batches of every size, at every place in them, and with any number of threads."""
    n, k = 101, odd_k(dtype, 517)
    packed, _ = make(dtype, n, k)
    x, bias = torch.randn(70, k), torch.randn(n)
    ops.set_num_threads(1)
    alone = torch.cat([ops.linear(x[i : i + 1], packed, bias) for i in range(70)])
    for threads in (1, 2, 3):
        ops.set_num_threads(threads)
        for rows in range(1, 71):
            start = int(torch.randint(0, 71 - rows, ()))
            y = ops.linear(x[start : start + rows], packed, bias)
            assert_same_bits(y, alone[start : start + rows])


@pytest.mark.parametrize("dtype", ["F16", "Q4_0", "Q5_1", "Q4_K", "Q6_K"])
def test_a_row_has_one_result_in_long_prefills(dtype: str) -> None:
    n, k = 300, 256
    packed, _ = make(dtype, n, k)
    x = torch.randn(2050, k)
    ops.set_num_threads(2)
    y = ops.linear(x, packed)
    for start, rows in ((0, 1), (119, 2), (955, 13), (959, 9), (1919, 130), (2049, 1)):
        assert_same_bits(ops.linear(x[start : start + rows], packed), y[start : start + rows])


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_column_has_one_result(dtype: str) -> None:
    """Columns do not depend on their neighbours: pieces of a fused projection equal the whole."""
    k = odd_k(dtype, 300)
    data, x = random_source(dtype, 90, k), torch.randn(10, k)
    whole = ops.linear(x, ops.pack_weight(data, dtype, (90, k)))
    for begin, end in ((0, 31), (31, 33), (33, 90)):
        piece = ops.pack_weight(data[begin:end], dtype, (end - begin, k))
        assert_same_bits(ops.linear(x, piece), whole[:, begin:end])
        assert_same_bits(ops.linear(x[:1], piece), whole[:1, begin:end])


@pytest.mark.parametrize("rows", [1, 6, 20])
@pytest.mark.parametrize("dtype", ["F32", "Q4_1", "Q5_K"])
def test_strided(dtype: str, rows: int) -> None:
    n, k = 77, 512
    packed, _ = make(dtype, n, k)
    for name, x in strided_views(torch.randn, rows, k).items():
        expected = ops.linear(x.contiguous(), packed)
        print(name)  # shown when it fails
        assert_same_bits(ops.linear(x, packed), expected)
        wide = torch.full((rows, n + 8), 5.0)
        out = wide[:, 3 : 3 + n]
        assert ops.linear(x, packed, out=out) is out
        assert_same_bits(out, expected)
        assert bool((wide[:, :3] == 5).all())
        assert bool((wide[:, 3 + n :] == 5).all())


def test_leading_dimensions() -> None:
    packed, weight = make("Q8_0", 40, 64)
    x = torch.randn(2, 3, 5, 64)
    y = ops.linear(x, packed)
    assert y.shape == (2, 3, 5, 40)
    assert_linear(y.flatten(0, 2), x.flatten(0, 2), weight)
    assert_same_bits(ops.linear(x[1, 2, 4], packed), y[1, 2, 4])
    assert ops.linear(x[:, :0], packed).shape == (2, 0, 5, 40)


@pytest.mark.parametrize("dtype", FORMATS)
def test_no_rows(dtype: str) -> None:
    packed, _ = make(dtype, 33, odd_k(dtype, 32))
    assert ops.linear(torch.empty(0, packed.shape[1]), packed).shape == (0, 33)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("rows", [3, 11, 30])
def test_nan_stays_in_its_row(rows: int, dtype: str) -> None:
    k = odd_k(dtype, 300)
    packed, _ = make(dtype, 50, k)
    x = torch.randn(rows, k)
    clean = ops.linear(x, packed)
    x[1, k // 2] = float("nan")
    y = ops.linear(x, packed)
    assert bool(y[1].isnan().all())
    others = [i for i in range(rows) if i != 1]
    assert_same_bits(y[others], clean[others])


def test_memory_beyond_the_arguments_is_not_read() -> None:
    """x, bias and the padding of the last tile: what lies around them is NaN."""
    n, k = 33, 33
    packed, weight = make("F32", n, k)
    for rows in (1, 5, 30):
        x = torch.full((rows, k + 40), float("nan"))
        x[:, 20 : 20 + k] = torch.randn(rows, k)
        bias = torch.full((n + 40,), float("nan"))
        bias[7 : 7 + n] = torch.randn(n)
        view, b = x[:, 20 : 20 + k], bias[7 : 7 + n]
        assert_linear(ops.linear(view, packed, b), view, weight, b)


def test_far_rows() -> None:
    """Rows more than 2^31 elements apart from the first: offsets are 64-bit."""
    packed, weight = make("Q4_0", 40, 64)
    distance = (1 << 31) + 8
    try:
        memory = torch.empty(distance + 200)  # 8.6 GB of addresses; only a few pages are touched
    except RuntimeError:
        pytest.skip("the system does not give out that much address space")
    x = memory.as_strided((2, 64), (distance, 1))
    out = memory.as_strided((2, 40), (distance, 1), 100)
    x.copy_(torch.randn(2, 64))
    ops.linear(x, packed, out=out)
    assert_linear(out, x, weight)


def test_extreme_values_stay_finite() -> None:
    """The largest half-precision scales and the largest codes: far from float32's end."""
    n, k = 32, 256
    scales = np.full((n, 1, 2), 65504.0, np.float16)
    data = with_scales(torch.full((n, 144), 255, dtype=torch.uint8), "Q4_K", scales)
    packed = ops.pack_weight(data, "Q4_K", (n, k))
    x = torch.ones(1, k)
    assert_linear(ops.linear(x, packed), x, dequantised(data, "Q4_K"))


def test_callers_in_several_threads() -> None:
    packed, _ = make("Q4_1", 200, 512)
    inputs = [torch.randn(rows, 512) for rows in (1, 3, 30, 200)]
    expected = [ops.linear(x, packed) for x in inputs]
    wrong: list[int] = []

    def call(which: int) -> None:
        for _ in range(50):
            if not torch.equal(ops.linear(inputs[which], packed), expected[which]):
                wrong.append(which)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_weight_outlives_what_it_was_made_from() -> None:
    weights = [make("Q4_0", 64, 512) for _ in range(4)]
    del weights[::2]
    torch.randn(1 << 20)
    for packed, weight in weights:
        x = torch.randn(2, 512)
        assert_linear(ops.linear(x, packed), x, weight)


X = torch.zeros(3, 64)
WRONG = {
    "x: other K": ({"x": torch.zeros(3, 65)}, r"x: expected last dimension of shape \[K=64\], got \[3, 65\]"),
    "x: no dimension": ({"x": torch.zeros(())}, "x: expected at least 1 dimension"),
    "x: dtype": ({"x": X.half()}, "x: expected dtype float32, got float16"),
    "x: columns strided": ({"x": torch.zeros(3, 128)[:, ::2]}, "x: expected a contiguous last dimension"),
    "x: uneven rows": (
        {"x": torch.zeros(2, 5, 64)[:, :3], "out": torch.zeros(2, 3, 40)},
        "x: expected rows at one distance",
    ),
    "bias: shape": ({"bias": torch.zeros(41)}, r"bias: expected shape \[N=40\], got \[41\]"),
    "bias: dtype": ({"bias": torch.zeros(40).double()}, "bias: expected dtype float32, got float64"),
    "bias: strided": ({"bias": torch.zeros(80)[::2]}, "bias: expected a contiguous"),
    "out: other N": ({"out": torch.zeros(3, 41)}, r"out: expected last dimension of shape \[N=40\]"),
    "out: other rows": ({"out": torch.zeros(4, 40)}, r"out: expected the leading dimensions of x \[3, 64\]"),
    "out: dtype": ({"out": torch.zeros(3, 40).half()}, "out: expected dtype float32"),
    "out: columns strided": (
        {"out": torch.zeros(3, 80)[:, ::2]},
        "out: expected a contiguous last dimension",
    ),
    "out: one memory for all rows": (
        {"out": torch.zeros(1, 40).expand(3, 40)},
        "out: expected memory of its own",
    ),
    "out: is x": ({"out": X[:, :40]}, "out: "),
}


@pytest.mark.parametrize("case", WRONG)
def test_refuses(case: str) -> None:
    packed, _ = make("Q4_0", 40, 64)
    change, message = WRONG[case]
    arguments = {"x": X, "bias": None, "out": None, **change}
    with pytest.raises(ValueError, match=f"linear: {message}"):
        ops.linear(arguments["x"], packed, arguments["bias"], arguments["out"])


def test_refuses_other_types() -> None:
    packed, _ = make("Q4_0", 40, 64)
    with pytest.raises(TypeError, match="linear: weight: expected a PackedWeight or DenseWeight, got Tensor"):
        ops.linear(X, torch.zeros(40, 64))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"bias: expected a torch\.Tensor or None"):
        ops.linear(X, packed, [0.0] * 40)  # type: ignore[arg-type]


@pytest.mark.parametrize("isa", ["base", "v3"])
def test_other_instruction_sets(isa: str) -> None:
    """The tests of packed weights again, on each instruction set below the one in use."""
    names = ("test_linear.py", "test_pack.py", "test_embedding.py")
    check_on_instruction_set(isa, names, deselect="instruction")
