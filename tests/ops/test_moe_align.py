"""moe_align_block_size against a simple model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferx import ops


def model(topk_ids: Tensor, block_size: int, num_experts: int) -> tuple[list[int], list[int], int]:
    """Sorted pairs and blocks' experts without what stands behind them, and how many there are."""
    flat = topk_ids.flatten().tolist()
    sorted_ids: list[int] = []
    blocks: list[int] = []
    for expert in range(num_experts):
        pairs = [i for i, e in enumerate(flat) if e == expert]
        pairs += [len(flat)] * (-len(pairs) % block_size)
        sorted_ids += pairs
        blocks += [expert] * (len(pairs) // block_size)
    return sorted_ids, blocks, len(sorted_ids)


def assert_aligned(
    actual: tuple[Tensor, Tensor, Tensor], topk_ids: Tensor, block_size: int, num_experts: int
) -> None:
    sorted_ids, expert_ids, count = actual
    pairs = topk_ids.numel()
    most = pairs + min(pairs, num_experts) * (block_size - 1)
    assert sorted_ids.shape == (most,)
    assert expert_ids.shape == (-(-most // block_size),)
    assert count.shape == (1,)
    assert {t.dtype for t in actual} == {torch.int32}
    expected, blocks, used = model(topk_ids, block_size, num_experts)
    assert int(count) == used
    assert sorted_ids.tolist() == expected + [pairs] * (most - used)
    assert expert_ids.tolist() == blocks + [-1] * (len(expert_ids) - len(blocks))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_ids(data: st.DataObject) -> None:
    num_experts = data.draw(st.sampled_from([1, 2, 5, 8, 60, 257, 512]))
    block_size = data.draw(st.sampled_from([1, 2, 3, 16, 64, 128]))
    top_k = data.draw(st.integers(1, 8))
    tokens = data.draw(st.integers(0, 40))
    ids = st.integers(-1, num_experts) if data.draw(st.booleans()) else st.integers(0, num_experts - 1)
    if data.draw(st.booleans()):
        ids = st.sampled_from([0, num_experts - 1])
    flat = data.draw(st.lists(ids, min_size=tokens * top_k, max_size=tokens * top_k))
    topk_ids = torch.tensor(flat, dtype=torch.int32).view(tokens, top_k)
    actual = ops.moe_align_block_size(topk_ids, block_size, num_experts)
    assert_aligned(actual, topk_ids, block_size, num_experts)


def test_ids_far_out_of_range_are_left_out() -> None:
    topk_ids = torch.tensor([[2**31 - 1, -(2**31)], [3, 1], [-1, 4]], dtype=torch.int32)
    actual = ops.moe_align_block_size(topk_ids, 2, 4)
    assert actual[0].tolist() == [3, 6, 2, 6, 6, 6, 6, 6, 6, 6]
    assert actual[1].tolist() == [1, 3, -1, -1, -1]
    assert actual[2].tolist() == [4]


IDS = torch.zeros(3, 2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.moe_align_block_size(IDS, 0, 4), "block_size: expected 1 to 2147483647, got 0"),
        (
            lambda: ops.moe_align_block_size(IDS, 2**31, 1),
            "block_size: expected 1 to 2147483647, got 2147483648",
        ),
        (lambda: ops.moe_align_block_size(IDS, 4, 0), "num_experts: expected 1 to 512, got 0"),
        (lambda: ops.moe_align_block_size(IDS, 4, 513), "num_experts: expected 1 to 512, got 513"),
        (lambda: ops.moe_align_block_size(IDS.long(), 4, 4), "topk_ids: expected dtype int32, got int64"),
        (
            lambda: ops.moe_align_block_size(IDS[0], 4, 4),
            r"moe_align_block_size: topk_ids: expected shape \[T, k\], got \[2\]",
        ),
        (lambda: ops.moe_align_block_size(IDS.t(), 4, 4), "topk_ids: expected a contiguous tensor"),
        (
            lambda: ops.moe_align_block_size(IDS, 2**30, 4),
            r"topk_ids: expected pairs that pad to less than 2\*\*31, got 4294967298",
        ),
        (
            lambda: torch.ops.inferx.moe_align_block_size(IDS[0], IDS[1], IDS[2, :1], IDS.clone(), 4, 2),
            "sorted_token_ids: expected at least 10 elements, got ",
        ),
        (
            lambda: torch.ops.inferx.moe_align_block_size(
                torch.empty(10, dtype=torch.int32), IDS[1], IDS[2, :1], IDS.clone(), 4, 2
            ),
            "expert_ids: expected at least 5 elements, got ",
        ),
    ],
)
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("value", [None, "a", 1.5, True])
def test_sizes_are_ints(value: Any) -> None:
    for name, sizes in (("block_size", (value, 4)), ("num_experts", (4, value))):
        with pytest.raises(TypeError, match=f"moe_align_block_size: {name}: expected an int, got {value!r}"):
            ops.moe_align_block_size(IDS, *sizes)


def test_schema_and_fake() -> None:
    def empty(size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int32)

    arguments = (empty(10), empty(5), empty(1), torch.randint(4, (3, 2)).int(), 4, 2)
    overload = torch.ops.inferx.moe_align_block_size.default
    torch.library.opcheck(overload, arguments, test_utils=("test_schema", "test_faketensor"))
