"""apply_token_bitmask: the CUDA source against a mask unpacked by numpy."""

from __future__ import annotations

import pytest
import torch
from harness import Device
from op_checks import FLOATS, assert_same_bits
from token_bitmask_reference import any_logits, expected_logits, random_bitmask

from inferx import ops


# A CTA has 4,096 columns of float32, 8,192 of the others.
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("vocab", [1, 7, 32, 33, 8200])
@pytest.mark.parametrize("kind", ["few", "half", "most"])
def test_masked_and_kept(device: Device, kind: str, vocab: int, dtype: torch.dtype) -> None:
    logits, bitmask = any_logits(2, vocab, dtype), random_bitmask(kind, 2, vocab)
    actual = device.put(logits)
    with device:
        ops.apply_token_bitmask(actual, device.put(bitmask))
    assert_same_bits(actual.cpu(), expected_logits(logits, bitmask))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("words", [0, 1, 4, 9])
def test_masks_of_another_width(device: Device, words: int, dtype: torch.dtype) -> None:
    logits = any_logits(2, 117, dtype)
    bitmask = torch.full((2, words), -1, dtype=torch.int32)
    actual = device.put(logits)
    with device:
        ops.apply_token_bitmask(actual, device.put(bitmask))
    assert_same_bits(actual.cpu(), expected_logits(logits, bitmask))


@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize("rows", [[], [4], [5, 0, 3]])
def test_some_rows(device: Device, rows: list[int], index: torch.dtype) -> None:
    logits, bitmask = any_logits(6, 333, torch.bfloat16), random_bitmask("half", len(rows), 333)
    actual = device.put(logits)
    with device:
        ops.apply_token_bitmask(actual, device.put(bitmask), device.put(torch.tensor(rows, dtype=index)))
    assert_same_bits(actual.cpu(), expected_logits(logits, bitmask, rows))


def test_rows_that_do_not_exist_do_nothing(device: Device) -> None:
    logits, bitmask = any_logits(3, 100, torch.float32), random_bitmask("few", 4, 100)
    rows = [-1, 3, 2**40, 1]
    actual = device.put(logits)
    with device:
        ops.apply_token_bitmask(actual, device.put(bitmask), device.put(torch.tensor(rows)))
    assert_same_bits(actual.cpu(), expected_logits(logits, bitmask[3:], [1]))


@pytest.mark.parametrize("columns", [slice(0, 96), slice(4, 100), slice(3, 99), slice(1, 104)])
def test_strides_and_alignment(device: Device, columns: slice) -> None:
    wide, masks = any_logits(6, 104, torch.float16), random_bitmask("half", 9, 32 * 7)
    logits, bitmask = wide[::2, columns], masks[::3, 2:6]
    expected = wide.clone()
    expected[::2, columns] = expected_logits(logits, bitmask)
    actual = device.put(wide)
    with device:
        ops.apply_token_bitmask(actual[::2, columns], device.put(bitmask))
    assert_same_bits(actual.cpu(), expected)


def test_empties(device: Device) -> None:
    with device:
        for rows, vocab in ((0, 40), (3, 0)):
            ops.apply_token_bitmask(
                device.put(torch.empty(rows, vocab)), device.put(torch.empty(rows, 2, dtype=torch.int32))
            )


def test_wrong_arguments(device: Device) -> None:
    logits, bitmask = device.put(torch.zeros(4, 40)), device.put(torch.zeros(4, 2, dtype=torch.int32))
    with device:
        with pytest.raises(ValueError, match=r"apply_token_bitmask: bitmask: expected shape \[R=4, W\]"):
            ops.apply_token_bitmask(logits, bitmask[:3])
        with pytest.raises(ValueError, match="apply_token_bitmask: logits: expected memory apart"):
            ops.apply_token_bitmask(logits, logits.view(torch.int32))
