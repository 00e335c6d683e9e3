"""The CUDA source of float32 attention: all requests, against float64, the CPU backend and itself."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from attention_checks import (
    check,
    check_result,
    make,
    of,
    put,
    rows_of,
    run,
    spoil_before_window,
    without_causal_mask,
)
from harness import Device
from op_checks import assert_same_bits
from paged_attention_reference import random_requests

from inferx import ops

F32 = torch.float32
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
MIXED = [(1, 1), (1, 200), (40, 40), (0, 40), (17, 129), (5, 3), (1, 0), (2, 65)]
SHORT = [(1, 64), (3, 37), (0, 5), (9, 65), (2, 1)]


@pytest.mark.parametrize("dim", [8, 16, 64, 72, 80, 96, 128, 256])
def test_matches_float64(device: Device, dim: int) -> None:
    check(device, make(MIXED, (2, 1), dim, F32))


@pytest.mark.parametrize("cache_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("head_major", [False, True])
@pytest.mark.parametrize("block_size", [1, 3, 8, 24, 64])
def test_caches(device: Device, block_size: int, head_major: bool, cache_dtype: torch.dtype) -> None:
    layout = {"block_size": block_size, "head_major": head_major}
    check(device, make(SHORT, (4, 2), 72, F32, cache_dtype=cache_dtype, **layout))


@pytest.mark.parametrize("group", [1, 3, 4, 8, 20])
def test_groups(device: Device, group: int) -> None:
    check(device, make(SHORT, (2 * group, 2), 64, F32))


@pytest.mark.parametrize("window", [1, 15, 64, 100, 5000])
def test_window(device: Device, window: int) -> None:
    batch = make(MIXED, (2, 1), 64, F32)
    spoil_before_window(batch, window)
    check(device, batch, window=window)


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("max_query_len", [1, None])
@pytest.mark.parametrize("block_size", [2**31, 2**32, 2**32 + 8])
def test_blocks_of_more_slots_than_an_int(
    device: Device, dtype: torch.dtype, block_size: int, max_query_len: int | None
) -> None:
    """Such a cache exists as one row that is expanded; all keys are in a request's first block."""
    if not device.is_simt:
        pytest.skip("no expanded copy on a GPU")
    key, value = (torch.randn(64).to(dtype) for _ in range(2))
    caches = [row.expand(2, block_size, 1, 64) for row in (key, value)]
    table = device.put(torch.tensor([[1, -7]], dtype=torch.int32))
    starts, lengths = (device.put(torch.tensor(x, dtype=torch.int32)) for x in ([0, 1], [30]))
    query = device.put(torch.randn(1, 3, 64).to(dtype))
    with device:
        out = ops.paged_attention(query, *caches, table, starts, lengths, 0.1, max_query_len=max_query_len)
    assert isinstance(out, torch.Tensor)
    assert torch.allclose(out, value.expand(1, 3, 64), rtol=1e-2, atol=1e-5)


def test_softcap_and_sinks(device: Device) -> None:
    sinks = torch.tensor([-torch.inf, -3.0, 0.5, 40.0])
    batch = make(SHORT, (4, 2), 64, F32, spread=4.0)
    check(device, batch, softcap=0.5)
    check(device, batch, sinks=sinks)
    check(device, batch, sinks=sinks, window=33, softcap=3.0)


def test_rows_without_keys(device: Device) -> None:
    batch = make([(3, 1), (2, 0), (1, 5)], (4, 2), 64, F32)
    empty = [0, 1, 3, 4]
    out, lse = run(device, batch)
    assert (out[empty] == 0).all()
    assert (lse[empty] == -torch.inf).all()
    assert (out[[2, 5]] != 0).all()
    sinks = torch.tensor([1.0, 2.0, 3.0, -torch.inf])
    out, lse = run(device, batch, sinks=sinks)
    assert (out[empty] == 0).all()
    assert torch.equal(lse[empty], sinks.expand(4, 4))


def test_scores_far_below_any_mask_value(device: Device) -> None:
    generator = torch.Generator().manual_seed(7)
    keys = torch.randint(-4, 5, (90, 1, 64), generator=generator).float()
    keys[:, :, 0] = -100000.0  # scores stay exact in float32
    query = torch.zeros(40, 1, 64)
    query[:, :, 0] = 1.0
    query[:, :, 1:] = torch.randint(-1, 2, (40, 1, 63), generator=generator).float()
    batch = of(([query], [keys], [torch.randn(90, 1, 64, generator=generator)]), F32)
    for scale in (1.0, -1.0, 0.0):
        check(device, batch, scale)


def test_without_a_causal_mask(device: Device) -> None:
    batch = make([(5, 70), (2, 1), (3, 0)], (4, 2), 64, F32)
    check_result(run(device, batch, causal=False), without_causal_mask(batch))


def test_strided_and_in_place(device: Device) -> None:
    batch = make([(5, 60), (1, 90)], (4, 2), 24, F32)
    expected, expected_lse = run(device, batch)
    moved = put(device, batch)
    fused = device.put(torch.full((6, 8, 24), torch.nan))
    fused[:, 1:5] = moved.query
    wide, lses = device.put(torch.full((6, 6, 31), 7.0)), device.put(torch.full((4, 12), 7.0))
    with device:
        torch.ops.inferx.paged_attention(
            wide[:, 2:, 3:27], lses[:, ::2].T, fused[:, 1:5], *moved.arguments()[1:], batch.scale
        )
        ops.paged_attention(*moved.arguments(), batch.scale, out=moved.query)
    assert_same_bits(wide[:, 2:, 3:27].cpu(), expected)
    assert_same_bits(lses[:, ::2].T.cpu(), expected_lse)
    assert_same_bits(moved.query.cpu(), expected)
    wide[:, 2:, 3:27] = 7
    assert (wide == 7).all()
    assert (lses[:, 1::2] == 7).all()


@pytest.mark.parametrize("options", [{}, {"window": 50, "softcap": 5.0}], ids=str)
def test_equals_the_cpu_backend(device: Device, options: dict[str, Any]) -> None:
    batch = make(MIXED, (9, 3), 64, F32, cache_dtype=torch.bfloat16)
    out, lse = run(device, batch, **options)
    expected, expected_lse = ops.paged_attention(*batch.arguments(), batch.scale, return_lse=True, **options)
    torch.testing.assert_close(out, expected, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(lse, expected_lse, rtol=2e-6, atol=4e-6)


# ---- the same bits whatever surrounds a row ---------------------------------------------------------------


def test_bits_do_not_depend_on_batch_and_layout(device: Device) -> None:
    requests = random_requests(MIXED, 6, 2, 64, seed=3)
    sinks = torch.linspace(-1, 1, 6)
    whole = of(requests, F32)
    expected = run(device, whole, sinks=sinks)
    for index in (1, 2, 4, 7):
        alone = of(tuple([x[index]] for x in requests), F32, block_size=24, head_major=True, seed=5)
        for one, all_of_them in zip(run(device, alone, sinks=sinks), expected, strict=True):
            assert_same_bits(one, all_of_them[rows_of(whole, index)])


@pytest.mark.parametrize("window", [0, 110])
def test_bits_do_not_depend_on_chunks(device: Device, window: int) -> None:
    """Decodes and chunks of any size give what the whole prompt does."""
    length = (
        210  # query 205 sees keys from 96 on, three tiles: alone it begins with another tile than in a CTA
    )
    (query,), (keys,), (values,) = random_requests([(length, length)], 6, 2, 40, seed=11)
    expected = run(device, of(([query], [keys], [values]), F32), window=window)
    parts = [slice(0, 1), slice(1, 8), slice(8, 40), slice(127, 129), slice(205, 206), slice(198, 210)]
    ends = [p.stop for p in parts]
    batch = of(([query[p] for p in parts], [keys[:e] for e in ends], [values[:e] for e in ends]), F32)
    for one, all_of_them in zip(run(device, batch, window=window), expected, strict=True):
        assert_same_bits(one, torch.cat([all_of_them[p] for p in parts]))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_rows_do_not_touch_keys_they_do_not_see(device: Device, bad: float) -> None:
    queries, keys, values = random_requests([(30, 100)], 2, 1, 64, seed=9)
    clean, _ = run(device, of((queries, keys, values), F32), window=50)
    first = 100 - 30 - 50 + 1  # seen by the first row only
    for tensors in (keys, values):
        tensors[0][99], tensors[0][first] = bad, bad
    dirty, _ = run(device, of((queries, keys, values), F32), window=50)
    assert_same_bits(clean[1:-1], dirty[1:-1])
    assert dirty[0].isnan().all()
    assert dirty[-1].isnan().all()


def test_all_scores_nan(device: Device) -> None:
    queries, keys, values = random_requests([(2, 40)], 2, 1, 64, seed=9)
    keys[0][...] = torch.nan
    assert all(x.isnan().all() for x in run(device, of((queries, keys, values), F32)))


# ---- values that no host can check -------------------------------------------------------------------------


def test_missing_blocks_are_left_out(device: Device) -> None:
    batch = make([(1, 100), (1, 40)], (4, 2), 64, F32, spare_blocks=0)
    keep = torch.ones(100, dtype=torch.bool)
    for index, block in [(3, -1), (5, batch.key_cache.shape[0])]:
        batch.block_tables[0, index] = block
        keep[index * 16 : index * 16 + 16] = False
    batch.block_tables[1] = 2**31 - 1
    result = run(device, batch)
    batch.keys = [batch.keys[0][keep], batch.keys[1][:0]]
    batch.values = [batch.values[0][keep], batch.values[1][:0]]
    check_result(result, batch)


GARBAGE = random.Random(1)
NONSENSE = [
    [GARBAGE.choice([GARBAGE.randint(-(2**31), 2**31 - 1), GARBAGE.randint(-2, 8)]) for _ in range(3)]
    for _ in range(6)
]


@pytest.mark.parametrize(
    "cu_seqlens_q",
    [[0, 300, 4], [-5, 2, 9], [0, 2**31 - 1, 6], [5, 2, 6], [0, -(2**31), 1], [0, -3, 6], *NONSENSE],
    ids=str,
)
def test_lengths_that_make_no_sense_stay_in_bounds(device: Device, cu_seqlens_q: list[int]) -> None:
    batch = make([(2, 64), (4, 100)], (4, 2), 16, F32)
    batch.cu_seqlens_q[:] = torch.tensor(cu_seqlens_q)
    for seq_lens in ([2**31 - 1, -3], [-(2**31), 2**31 - 1], [64, 5000]):
        batch.seq_lens[:] = torch.tensor(seq_lens)
        run(device, batch)
        run(device, batch, window=7)


def test_empty_batches(device: Device) -> None:
    cache = torch.zeros(2, 16, 2, 64)
    for tokens, requests in ((0, 0), (0, 3)):
        tables = torch.zeros(requests, 1, dtype=torch.int32)
        arguments = (torch.zeros(tokens, 4, 64), cache, cache, tables, torch.zeros(requests + 1).int())
        with device:
            out = ops.paged_attention(
                *[device.put(x) for x in arguments], device.put(torch.zeros(requests).int()), 1.0
            )
        assert out.shape == (0, 4, 64)
