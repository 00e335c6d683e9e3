"""apply_token_bitmask against a mask unpacked by numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from op_checks import FLOATS, assert_same_bits, strided_views
from token_bitmask_reference import any_logits, expected_logits, pack, random_bitmask

from inferx import ops


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("vocab", [1, 5, 31, 32, 33, 64, 100, 1023, 49157])
@pytest.mark.parametrize("kind", ["few", "half", "most", "none", "all"])
def test_masked_and_kept(kind: str, vocab: int, dtype: torch.dtype) -> None:
    logits = any_logits(3, vocab, dtype)
    bitmask = random_bitmask(kind, 3, vocab)
    expected = expected_logits(logits, bitmask)
    ops.apply_token_bitmask(logits, bitmask)
    assert_same_bits(logits, expected)


def test_which_bit_is_whose() -> None:
    logits = torch.zeros(1, 70)
    bitmask = torch.tensor([[-(2**31), 5, 8]], dtype=torch.int32)
    ops.apply_token_bitmask(logits, bitmask)
    assert logits[0].isfinite().nonzero().flatten().tolist() == [31, 32, 34, 67]
    assert (logits[0][~logits[0].isfinite()] == -torch.inf).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("words", [0, 1, 3, 4, 9])
def test_masks_of_another_width(words: int, dtype: torch.dtype) -> None:
    """What lies beyond the mask is masked, bits beyond the logits mean nothing."""
    logits = any_logits(2, 117, dtype)
    bitmask = torch.full((2, words), -1, dtype=torch.int32)
    expected = logits.clone()
    expected[:, 32 * words :] = -torch.inf
    ops.apply_token_bitmask(logits, bitmask)
    assert_same_bits(logits, expected)


@pytest.mark.parametrize("kind", ["few", "most"])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize("rows", [[], [4], [5, 0, 3], [0, 1, 2, 3, 4, 5]])
def test_some_rows(rows: list[int], index: torch.dtype, kind: str) -> None:
    logits = any_logits(6, 333, torch.float32)
    bitmask = random_bitmask(kind, len(rows), 333)
    selected = torch.tensor(rows, dtype=index)
    expected = expected_logits(logits, bitmask, rows)
    ops.apply_token_bitmask(logits, bitmask, selected)
    assert_same_bits(logits, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_strides(dtype: torch.dtype) -> None:
    for name, logits in strided_views(lambda r, c: any_logits(r, c, dtype), 5, 203).items():
        if name == "one row expanded":
            continue
        whole = logits._base if logits._base is not None else logits
        before = whole.clone()
        for mask in strided_views(lambda r, c: pack(torch.rand(r, c * 32) < 0.5), 5, 7).values():
            expected = expected_logits(logits, mask)
            ops.apply_token_bitmask(logits, mask)
            assert_same_bits(logits, expected)
            logits.copy_(before.as_strided(logits.size(), logits.stride(), logits.storage_offset()))
        assert_same_bits(whole, before)  # nothing beside the rows was touched


def test_empties() -> None:
    ops.apply_token_bitmask(torch.empty(0, 40), torch.empty(0, 2, dtype=torch.int32))
    ops.apply_token_bitmask(torch.empty(3, 0), torch.empty(3, 0, dtype=torch.int32))
    kept = torch.ones(3, 40)
    none = torch.empty(0, dtype=torch.int64)
    ops.apply_token_bitmask(kept, torch.empty(0, 2, dtype=torch.int32), none)
    assert (kept == 1).all()


def test_threads_change_no_bit() -> None:
    logits = any_logits(7, 100_003, torch.float32)
    bitmask = random_bitmask("half", 7, 100_003)
    expected = expected_logits(logits, bitmask)
    before = ops.get_num_threads()
    try:
        ops.set_num_threads(3)
        ops.apply_token_bitmask(logits, bitmask)
    finally:
        ops.set_num_threads(before)
    assert_same_bits(logits, expected)


def test_a_masked_token_is_never_sampled() -> None:
    logits = torch.randn(4, 1000)
    bitmask = random_bitmask("few", 4, 1000)
    bitmask[:, 0] |= 1  # at least one
    ops.apply_token_bitmask(logits, bitmask)
    for seed in range(20):
        ids, status = ops.sample_tokens(logits, seed=torch.full((4,), seed))
        assert not status.any()
        for row, token in enumerate(ids.tolist()):
            assert int(bitmask[row, token // 32]) >> (token % 32) & 1


def test_numpy_memory() -> None:
    """The masks that a grammar library fills are often numpy's."""
    bitmask = np.full((2, 2), -1, dtype=np.int32)
    bitmask[1, 0] = 0
    logits = torch.zeros(2, 64)
    ops.apply_token_bitmask(logits, torch.from_numpy(bitmask))
    assert logits.isfinite().sum(1).tolist() == [64, 32]


X = torch.zeros(4, 40)
MASK = torch.zeros(4, 2, dtype=torch.int32)
MEMORY = torch.zeros(4, 40, dtype=torch.int32)
ROWS = torch.arange(4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[0], MASK), r"logits: expected shape \[R, V\], got \[40\]"),
        ((X.double(), MASK), "logits: expected dtype float32 or .* got float64"),
        ((X.T, MASK), "logits: expected a contiguous last dimension"),
        ((X[:1].expand(4, 40), MASK), "logits: expected memory of its own"),
        ((X, MASK.long()), "bitmask: expected dtype int32, got int64"),
        ((X, MASK[:3]), r"bitmask: expected shape \[R=4, W\], got \[3, 2\]"),
        ((X, MASK[0]), r"bitmask: expected shape \[R=4, W\], got \[2\]"),
        ((X, MEMORY.T[:4].T[:, ::2]), "bitmask: expected a contiguous last dimension"),
        ((X, MASK, ROWS[:3]), r"rows: expected shape \[M=4\], got \[3\]"),
        ((X, MASK, ROWS.float()), "rows: expected dtype int64 or int32, got float32"),
        ((X, MASK[:2], ROWS[::2]), "rows: expected a contiguous tensor"),
        ((X, MASK, ROWS + 1), r"rows: expected rows of logits, 0 to R - 1 = 3, got 4 at index 3"),
        ((X, MASK, ROWS - 1), r"rows: expected rows of logits, 0 to R - 1 = 3, got -1 at index 0"),
        ((X, MASK, (ROWS % 3).int()), "rows: expected no row twice, got 0 at index 3 again"),
        ((MEMORY.view(torch.float32), MEMORY[:, :2]), "logits: expected memory apart from that of bitmask"),
        (
            (MEMORY.view(torch.float32), MASK, MEMORY[0, :4]),
            "logits: expected memory apart from that of rows",
        ),
    ],
)
def test_wrong_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"apply_token_bitmask: {message}"):
        ops.apply_token_bitmask(*arguments)
    assert (X == 0).all()  # nothing was done before the check


def test_rows_is_no_list() -> None:
    rows: Any = [0, 1]
    with pytest.raises((TypeError, ValueError), match=r"rows: expected a torch\.Tensor"):
        ops.apply_token_bitmask(X, MASK[:2], rows)


@pytest.mark.parametrize("rows", [None, ROWS])
def test_schema_and_fake(rows: torch.Tensor | None) -> None:
    arguments = (torch.randn(4, 40), torch.full((4, 2), 77, dtype=torch.int32), rows)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.inferx.apply_token_bitmask.default, arguments, test_utils=checks)


def test_compiled_code_gives_the_same() -> None:
    logits, bitmask = torch.randn(4, 40), torch.full((4, 2), 77, dtype=torch.int32)
    expected = expected_logits(logits, bitmask)

    def masked(x: torch.Tensor) -> torch.Tensor:
        ops.apply_token_bitmask(x, bitmask)
        return x + 0

    assert_same_bits(torch.compile(masked, backend="aot_eager", fullgraph=True)(logits), expected)
