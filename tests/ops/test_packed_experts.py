"""Stacks of matrices: packed one by one, and a product with each.  test_experts.py has the MLPs over them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from op_checks import assert_same_bits, check_on_instruction_set
from packed_weights import FORMATS, dequantised, odd_k, random_source
from torch import Tensor

from inferx import ops
from inferx.ops.experts import (
    PackedExperts,
    batched_linear,
    fused_moe_packed,
    pack_experts,
    packed_experts_nbytes,
)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = ops.get_num_threads()
    yield
    ops.set_num_threads(before)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_pack(dtype: str, parts: int) -> None:
    e, n, k = 3, 66, odd_k(dtype, 40)
    data = torch.stack([random_source(dtype, n, k) for _ in range(e)])
    experts = pack_experts(data, dtype, (e, n, k), parts)
    assert (experts.shape, experts.dtypes) == ((e, n, k), (dtype,) * parts)
    assert experts.nbytes == packed_experts_nbytes((e, n, k), (dtype,) * parts)
    single = ops.packed_nbytes(dtype, (n // parts, k))
    assert experts.nbytes == e * parts * (single + -single % 64)
    for expert in range(e):
        assert_same_bits(experts.dequantize(expert), dequantised(data[expert], dtype))
    # From rows that lie apart, in another order, over what was there.
    wide = torch.zeros(n // parts, data.shape[2] + 5, dtype=data.dtype)
    wide[:, 2:-3] = data[0, : n // parts]
    experts.pack(2, parts - 1, wide[:, 2:-3])
    expected = dequantised(data[2], dtype)
    expected[n - n // parts :] = dequantised(data[0], dtype)[: n // parts]
    assert_same_bits(experts.dequantize(2), expected)
    assert_same_bits(experts.dequantize(1), dequantised(data[1], dtype))


def test_pack_from_a_read_only_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    data = torch.randn(2, 40, 24)
    path = tmp_path / "weights"
    path.write_bytes(data.numpy().tobytes())
    mapped = np.memmap(path, np.float32, mode="r").reshape(2, 40, 24)
    with pytest.warns(UserWarning, match="not writable"):
        view = torch.from_numpy(mapped)
    experts = pack_experts(view, "F32", (2, 40, 24))
    assert_same_bits(experts.dequantize(1), data[1])


SMALL = PackedExperts((4, 64, 32), ("Q4_0", "F32"))
HALF = torch.zeros(32, 32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: PackedExperts((4, 64), ("F32",)),
            r"PackedExperts: shape: expected \(E, N, K\), got \(4,",
        ),
        (lambda: PackedExperts((4, 64, 32), ()), "PackedExperts: dtypes: expected a type for each part"),
        (
            lambda: PackedExperts((4, 65, 32), ("F32", "F32")),
            r"N a multiple of the 2 parts, got \[4, 65",
        ),
        (lambda: PackedExperts((4, 64, 33), ("Q4_0",)), "K a multiple of Q4_0's block of 32"),
        (
            lambda: PackedExperts((4, 64, 32), ("Q3",)),
            "PackedExperts: dtype: expected one of .*got 'Q3'",
        ),
        (lambda: PackedExperts((0, 64, 32), ("F32",)), r"E at least 1 .*got \[0, 64, 32\]"),
        (lambda: packed_experts_nbytes((1 << 40, 1 << 20, 1 << 20), ("F32",)), "a size that can exist"),
        (lambda: SMALL.pack(0, 0, HALF), "PackedExperts.pack: data: expected dtype uint8, got float32"),
        (lambda: SMALL.pack(0, 1, HALF[1:]), r"pack: data: expected shape \[32, 32\], got \[31, 32\]"),
        (lambda: SMALL.pack(0, 1, HALF.T), "pack: data: expected a contiguous last dim"),
        (
            lambda: pack_experts(HALF, "F32", (4, 8, 32)),
            r"pack_experts: data: expected \[4, 8, row\], got",
        ),
        (
            lambda: pack_experts(torch.zeros(3, 8, 32), "F32", (4, 8, 32)),
            r"pack_experts: data: expected \[4, 8, row\], got \[3, 8, 32\]",
        ),
    ],
)
def test_packing_refuses(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()


def test_packing_refuses_indices() -> None:
    for expert, part, message in (
        (4, 1, r"pack: expert: expected 0 <= index < 4, got 4"),
        (-1, 1, r"pack: expert: expected 0 <= index < 4, got -1"),
        (0, 2, r"pack: part: expected 0 <= index < 2, got 2"),
    ):
        with pytest.raises(IndexError, match=message):
            SMALL.pack(expert, part, HALF)
    with pytest.raises(IndexError, match=r"dequantize: expert: expected 0 <= index < 4, got 9"):
        SMALL.dequantize(9)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("n", [1, 32, 45])
def test_batched_values(dtype: str, n: int) -> None:
    b, k = 3, odd_k(dtype, 40)
    data = torch.stack([random_source(dtype, n, k) for _ in range(b)])
    weight = pack_experts(data, dtype, (b, n, k))
    single = [ops.pack_weight(data[i], dtype, (n, k)) for i in range(b)]
    for threads in (1, 3):
        ops.set_num_threads(threads)
        for tokens in (0, 1, 2, 9, 130):
            x = torch.randn(tokens, b, k)
            expected = torch.stack([ops.linear(x[:, i].contiguous(), single[i]) for i in range(b)], dim=1)
            assert_same_bits(batched_linear(x, weight), expected)
            assert_same_bits(batched_linear(x[:, :, :], weight, torch.empty(tokens, b, n)), expected)


@pytest.mark.parametrize("tokens", [1, 7])
def test_batched_strided(tokens: int) -> None:
    """As MLA calls it: a range of each head's columns in, and out."""
    weight = pack_experts(torch.randn(5, 40, 24), "F32", (5, 40, 24))
    wide = torch.randn(tokens, 5, 64)
    out = torch.full((tokens, 5, 50), 5.0)
    batched_linear(wide[..., 8:32], weight, out[..., 3:43])
    assert_same_bits(out[..., 3:43], batched_linear(wide[..., 8:32].contiguous(), weight))
    assert bool((out[..., :3] == 5).all())
    assert bool((out[..., 43:] == 5).all())
    heads_first = torch.randn(5, tokens, 24).transpose(0, 1)
    expected = batched_linear(heads_first.contiguous(), weight)
    turned = torch.empty(5, tokens, 40).transpose(0, 1)
    assert_same_bits(batched_linear(heads_first, weight, turned), expected)


def test_batched_several_passes() -> None:
    data = torch.randn(2, 3, 1024)
    weight = pack_experts(data, "F32", (2, 3, 1024))
    x = torch.randn(1, 2, 1024).expand(9000, 2, 1024)
    one = batched_linear(x[:1], weight)
    assert_same_bits(batched_linear(x, weight), one.expand(9000, 2, 3))


def test_batched_dense() -> None:
    """A plain tensor: torch's product."""
    weight, x = torch.randn(3, 10, 12), torch.randn(7, 3, 20)[..., 4:16]
    expected = torch.einsum("tbk,bnk->tbn", x.double(), weight.double())
    y = batched_linear(x, weight)
    assert torch.allclose(y.double(), expected, atol=1e-5)
    assert y.is_contiguous()
    out = torch.empty(7, 3, 16)[..., 2:12]
    assert batched_linear(x, weight, out) is out
    assert torch.allclose(out.double(), expected, atol=1e-5)
    assert batched_linear(x[:0], weight).shape == (0, 3, 10)


STACK = pack_experts(torch.zeros(3, 10, 12), "F32", (3, 10, 12))
DENSE = torch.zeros(3, 10, 12)
BATCH = torch.zeros(7, 3, 12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((BATCH[:, :2], STACK), r"x: expected shape \[T, B=3, K=12\], got \[7, 2, 12\]"),
        ((BATCH.double(), STACK), "x: expected dtype float32, got float64"),
        ((BATCH, STACK, torch.zeros(7, 3, 11)), r"out: expected shape \[T=7, B=3, N=10\], got \[7, 3, 11\]"),
        ((BATCH, STACK, BATCH[..., :10]), "out: "),
        ((BATCH, SMALL), "weight: expected one part, got 2 parts"),
        ((BATCH[:, :2], DENSE), r"x: expected torch.float32 \[T, 3, 12\] on cpu, got .*\[7, 2, 12\]"),
        ((BATCH, DENSE[0]), r"weight: expected \[B, N, K\], got \[10, 12\]"),
        ((BATCH, DENSE, torch.zeros(7, 3, 11)), r"out: expected torch.float32 \[7, 3, 10\] on cpu"),
        ((BATCH, DENSE, BATCH[..., :10]), "out: expected memory apart from that of x"),
        ((BATCH[:2], DENSE, DENSE[:2, :3, :10]), "out: expected memory apart from that of weight"),
    ],
)
def test_batched_refuses(arguments: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"batched_linear: {message}"):
        batched_linear(*arguments)


def test_a_default_device_is_not_the_cpu_ops() -> None:
    """torch.set_default_device is where new tensors go, not where packed experts are."""
    data, x = torch.randn(2, 6, 5), torch.randn(3, 2, 5)
    expected = batched_linear(x, pack_experts(data, "F32", (2, 6, 5)))
    ids, weights = torch.zeros(3, 1, dtype=torch.int32), torch.ones(3, 1)
    with torch.device("meta"):
        stack, down = (pack_experts(d, "F32", d.shape, p) for d, p in ((data, 2), (data[:, :5, :3], 1)))
        assert stack.dequantize(1).device == x.device
        assert fused_moe_packed(x[:, 0], stack, down, weights, ids).device == x.device
        assert_same_bits(batched_linear(x, pack_experts(data, "F32", (2, 6, 5))), expected)


@pytest.mark.parametrize("parts", [0, -1, 7, 2**40, 1.5])
def test_as_many_parts_as_rows_at_most(parts: int) -> None:
    with pytest.raises(ValueError, match="pack_experts: parts: expected 1 to N = 6"):
        pack_experts(torch.zeros(2, 6, 5), "F32", (2, 6, 5), parts)


@pytest.mark.parametrize("isa", ["base", "v3"])
def test_other_instruction_sets(isa: str) -> None:
    check_on_instruction_set(isa, ["test_packed_experts.py"], deselect="instruction")
