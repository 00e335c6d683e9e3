"""mma.sync, ldmatrix and stmatrix against the PTX ISA's fragment layouts and float64 products."""

from __future__ import annotations

import pytest
import torch
from ptx_layouts import (
    DTYPES,
    a_8bit,
    a_16bit,
    a_tf32,
    b_8bit,
    b_16bit,
    b_tf32,
    c_16x8,
    matrix_8x8_owner,
    odd_values,
    pack,
    unpack,
)

KINDS = ["bf16", "f16", "e4m3", "e5m2", "s8", "tf32"]
# fragment A, fragment B, K, elements in a register
SHAPES = {
    "bf16": (a_16bit, b_16bit, 16, 2),
    "f16": (a_16bit, b_16bit, 16, 2),
    "e4m3": (a_8bit, b_8bit, 32, 4),
    "e5m2": (a_8bit, b_8bit, 32, 4),
    "s8": (a_8bit, b_8bit, 32, 4),
    "tf32": (a_tf32, b_tf32, 8, 1),
}


def registers_of_c(c: torch.Tensor) -> torch.Tensor:
    return torch.cat([pack(c[:, 8 * h : 8 * h + 8], c_16x8, 32, 4) for h in (0, 1)], 1)


def run_mma(simt, name, a, b, c, n16):
    position_a, position_b, _, per = SHAPES[name]
    ra = pack(a, position_a, 32, 4 * per)
    halves = [pack(b[:, 8 * h : 8 * h + 8], position_b, 32, 2 * per) for h in (0, 1)]
    out = torch.empty(32, 8, dtype=torch.int32)
    simt.run(
        "mma",
        inputs=[ra, torch.cat(halves, 1), registers_of_c(c)],
        outputs=[out],
        numbers=[KINDS.index(name), n16],
    )
    out = out.view(c.dtype)
    return torch.cat([unpack(out[:, 4 * h : 4 * h + 4], c_16x8, 16, 8) for h in (0, 1)], 1)


@pytest.mark.parametrize("n16", [0, 1])
@pytest.mark.parametrize("name", KINDS)
def test_product(simt, name: str, n16: int) -> None:
    if n16 and name in ("e5m2", "tf32"):
        pytest.skip("no paired form")
    k = SHAPES[name][2]
    for seed in range(3):
        a, b = odd_values(name, 16, k, seed=seed), odd_values(name, k, 16, seed=seed + 50)
        if name == "s8":
            c = torch.randint(-(2**31), 2**31 - 1, (16, 16), generator=torch.Generator().manual_seed(seed))
            want = a.long() @ b.long() + c
            got = run_mma(simt, name, a, b, c.int(), n16)
            want = (want + 2**31) % 2**32 - 2**31  # sums wrap
            columns = 16 if n16 else 8
            assert torch.equal(got[:, :columns].long(), want[:, :columns])
        else:
            c = torch.randn(16, 16, generator=torch.Generator().manual_seed(seed))
            want = a.double() @ b.double() + c
            got = run_mma(simt, name, a, b, c, n16)
            bound = (a.double().abs() @ b.double().abs() + c.abs()) * 2.0**-20
            columns = 16 if n16 else 8
            assert bool(((got - want).abs() <= bound)[:, :columns].all())
        if not n16:
            assert torch.equal(got[:, 8:], c[:, 8:].to(got.dtype))


def test_nan_and_infinity_spread_in_their_row_and_column(simt) -> None:
    for name in ("bf16", "f16", "e4m3", "e5m2"):
        k = SHAPES[name][2]
        a, b = torch.ones(16, k).to(DTYPES[name]), torch.ones(k, 16).to(DTYPES[name])
        a.view(torch.uint8 if a.element_size() == 1 else torch.int16)[3, 5] = (
            0x7F if a.element_size() == 1 else 0x7FFF
        )
        got = run_mma(simt, name, a, b, torch.zeros(16, 16), 1 if name != "e5m2" else 0)[:, :8]
        rows = torch.arange(16) == 3
        assert bool(got[rows].isnan().all())
        assert bool((got[~rows] == k).all())


# Of lanes to rows: as they come, and in another order, so that the lane's own address counts.
ORDERS = [torch.arange(32), (torch.arange(32) * 5 + 3) % 32]


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_ldmatrix(simt, matrices: int, transposed: int) -> None:
    """ldmatrix: threads 8i .. 8i+7 hold the addresses of matrix i's rows (the table of .num); .trans
    loads the matrix in column-major order."""
    for order in ORDERS:
        rows = torch.randperm(32 * 8, generator=torch.Generator().manual_seed(1)).to(torch.int16).view(32, 8)
        out = torch.full((32, 4), -1, dtype=torch.int32)
        simt.run("ldmatrix", inputs=[rows, order.int()], outputs=[out], numbers=[matrices, transposed])
        for m in range(matrices):
            matrix = rows[order[8 * m : 8 * m + 8]]
            matrix = matrix.T if transposed else matrix
            for row in range(8):
                for col in range(8):
                    lane, half = matrix_8x8_owner(row, col)
                    assert (int(out[lane, m]) >> 16 * half) & 0xFFFF == int(matrix[row, col])


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_stmatrix(simt, matrices: int, transposed: int) -> None:
    """stmatrix: the same layout of registers and addresses."""
    for order in ORDERS:
        halves = torch.randperm(32 * 8, generator=torch.Generator().manual_seed(2)).to(torch.int16) + 1
        out = torch.empty(32, 8, dtype=torch.int16)
        simt.run(
            "stmatrix",
            inputs=[halves.view(32, 8).view(torch.int32), order.int()],
            outputs=[out],
            numbers=[matrices, transposed],
        )
        want = torch.zeros(32, 8, dtype=torch.int16)
        held = halves.view(32, 4, 2)
        for m in range(matrices):
            matrix = torch.empty(8, 8, dtype=torch.int16)
            for row in range(8):
                for col in range(8):
                    lane, half = matrix_8x8_owner(row, col)
                    matrix[row, col] = held[lane, m, half]
            want[order[8 * m : 8 * m + 8]] = matrix.T.contiguous() if transposed else matrix
        assert torch.equal(out, want)


def test_bank_conflicts_of_matrix_rows_are_counted(simt) -> None:
    """Eight rows of 16 bytes fill the 32 banks once when their addresses differ modulo 128; each further
    row at the same place is a further cycle."""
    if not simt.is_simt:
        pytest.skip("counted by the executor")
    rows = torch.zeros(32, 8, dtype=torch.int16)
    for order, extra in [
        (torch.arange(32), 0),  # consecutive rows
        (
            torch.arange(32) // 8 + torch.arange(32) % 8 // 2 * 8,
            3 * 4,
        ),  # four of distance 128, each named twice
        (torch.zeros(32), 0),  # one row for all
    ]:
        simt.stats()
        out = torch.empty(32, 4, dtype=torch.int32)
        simt.run("ldmatrix", inputs=[rows, order.int()], outputs=[out], numbers=[4, 0])
        stats = simt.stats()
        assert (stats["ldmatrix"], stats["ldmatrix_extra"]) == (1, extra)


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        (1, "16-byte aligned"),
        (2, "out of bounds"),
        (4, "divergence"),
        (5, "divergence"),
    ],
)
def test_planted_bug(simt, bug: int, message: str) -> None:
    out = torch.empty(32, dtype=torch.int32)
    simt.fails(message, "bad_fragments", outputs=[out], numbers=[bug])


def test_only_the_first_lanes_addresses_count(simt) -> None:
    out = torch.empty(32, dtype=torch.int32)
    simt.run("bad_fragments", outputs=[out], numbers=[3])
    assert not out.any()
