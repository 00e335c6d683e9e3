"""The CUDA source of paged attention for requests with many query rows, and beside rows of few.

The caches of ``paged`` hold NaN in every slot that no request owns, so each test here also shows that such
slots are never used.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_checks import (
    E4M3,
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
from paged_attention_reference import paged, random_requests

from inferx import ops

DTYPES = [torch.bfloat16, torch.float16]
# Chunks behind cached prefixes, whole prompts, decodes, no queries, more queries than keys, no keys.
MIXED = [(17, 17), (1, 130), (40, 200), (0, 40), (30, 20), (20, 0), (65, 65)]
SHORT = [(20, 63), (1, 65), (33, 129), (18, 3)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [8, 64, 72, 80, 96, 128, 256])
def test_matches_float64(device: Device, dim: int, dtype: torch.dtype) -> None:
    check(device, make(MIXED if dim <= 80 else SHORT, (2, 1), dim, dtype))


@pytest.mark.parametrize("length", [17, 63, 64, 65, 129, 200])
def test_lengths(device: Device, length: int) -> None:
    check(device, make([(length, length), (17, length), (length, 17)], (2, 2), 64))


@pytest.mark.parametrize("group", [1, 3, 4, 8, 20])
def test_groups(device: Device, group: int) -> None:
    check(device, make([(17, 40), (2, 65), (1, 37), (9, 9)], (2 * group, 2), 64))


@pytest.mark.parametrize("head_major", [False, True])
@pytest.mark.parametrize("block_size", [8, 16, 24, 64])
def test_block_sizes(device: Device, block_size: int, head_major: bool) -> None:
    check(device, make(SHORT, (4, 2), 64, block_size=block_size, head_major=head_major))


@pytest.mark.parametrize("window", [1, 15, 64, 100, 5000])
def test_window(device: Device, window: int) -> None:
    batch = make([*SHORT, (70, 200)], (2, 1), 64)
    spoil_before_window(batch, window)
    check(device, batch, window=window)


@pytest.mark.parametrize("softcap", [0.5, 50.0])
def test_softcap(device: Device, softcap: float) -> None:
    check(device, make(SHORT, (4, 2), 64, torch.float16, spread=4.0), softcap=softcap)


def test_sinks(device: Device) -> None:
    sinks = torch.tensor([-torch.inf, -3.0, 0.5, 40.0])
    batch = make(SHORT, (4, 2), 64)
    check(device, batch, sinks=sinks)
    check(device, batch, sinks=sinks, window=33, softcap=3.0)


def test_rows_without_keys(device: Device) -> None:
    batch = make([(20, 3), (17, 0)], (4, 2), 64)
    empty = [*range(17), *range(20, 37)]
    out, lse = run(device, batch)
    assert (out[empty] == 0).all()
    assert (lse[empty] == -torch.inf).all()
    assert (out[17:20] != 0).all()
    sinks = torch.tensor([1.0, 2.0, 3.0, -torch.inf])
    out, lse = run(device, batch, sinks=sinks)
    assert (out[empty] == 0).all()
    torch.testing.assert_close(lse[empty], sinks.expand(34, 4), rtol=2e-7, atol=0)


@pytest.mark.parametrize("window", [0, 20])
def test_scores_far_below_any_mask_value(device: Device, window: int) -> None:
    generator = torch.Generator().manual_seed(7)
    keys = torch.randint(-4, 5, (90, 1, 64), generator=generator).float()
    keys[:, :, 0] = -99840.0  # a bfloat16; scores stay exact in float32
    query = torch.zeros(70, 1, 64)
    query[:, :, 0] = 1.0
    query[:, :, 1:] = torch.randint(-1, 2, (70, 1, 63), generator=generator).float()
    batch = of(([query], [keys], [torch.randn(90, 1, 64, generator=generator)]), torch.bfloat16)
    for scale in (1.0, -1.0):
        check(device, batch, scale, window=window)


def test_scale_of_zero_weighs_all_keys_alike(device: Device) -> None:
    check(device, make(SHORT, (2, 1), 64), 0.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [8, 64, 72, 80, 96, 128, 256])
def test_float8_cache(device: Device, dim: int, dtype: torch.dtype) -> None:
    batch = make(SHORT, (4, 2), dim, dtype, cache_dtype=E4M3)
    check(device, batch, k_scale=torch.tensor([0.75, 1.5]), v_scale=torch.tensor([3.0]))


def test_float8_layouts(device: Device) -> None:
    batch = make(SHORT, (4, 2), 64, cache_dtype=E4M3, head_major=True, block_size=24)
    check(device, batch)
    check(device, batch, k_scale=torch.tensor(0.5), v_scale=torch.tensor([0.25, 2.0]), softcap=2.0, window=40)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_float8_values(device: Device, dtype: torch.dtype) -> None:
    """Each of the 256 bytes as the only key that a row sees: its value is the output, its key the score."""
    codes = torch.arange(256, dtype=torch.uint8).view(E4M3).float()
    query = torch.zeros(256, 1, 64)
    query[:, 0, 7] = 1.0
    keys = codes.nan_to_num(0.0)[:, None, None].expand(256, 1, 64).contiguous()
    batch = of(([query], [keys], [keys]), dtype, E4M3)
    out, lse = run(device, batch, 1.0, window=1)
    assert torch.equal(out.float(), keys)
    torch.testing.assert_close(lse, keys[:, :, 7], rtol=2e-7, atol=1e-9)
    batch.value_cache[int(batch.block_tables[0, 0]), 3] = torch.tensor(0x7F, dtype=torch.uint8).view(E4M3)
    assert run(device, batch, 1.0, window=1)[0][3].isnan().all()


def test_strided(device: Device) -> None:
    batch = make([(20, 65), (33, 90), (1, 5)], (4, 2), 72)
    expected, expected_lse = run(device, batch)
    fused = device.put(torch.randn(54, 8, 72).bfloat16())
    query = fused[:, 1:5]
    query.copy_(batch.query)
    both = device.put(torch.stack([batch.key_cache, batch.value_cache], dim=1))
    outs, lses = (device.put(torch.full(s, 7.0)) for s in ((54, 6, 128), (4, 2 * 54)))
    outs = outs.bfloat16()
    tables = put(device, batch).arguments()[3:]
    with device:
        torch.ops.inferx.paged_attention(
            outs[:, 2:, :72], lses[:, ::2].T, query, both[:, 0], both[:, 1], *tables, batch.scale
        )
    assert_same_bits(outs[:, 2:, :72].cpu(), expected)
    assert_same_bits(lses[:, ::2].T.cpu(), expected_lse)
    assert (outs[:, :2] == 7).all()
    assert (outs[:, :, 72:] == 7).all()
    assert (lses[:, 1::2] == 7).all()


def test_in_place(device: Device) -> None:
    batch = put(device, make(SHORT, (4, 2), 64))
    with device:
        expected = ops.paged_attention(*batch.arguments(), batch.scale)
        ops.paged_attention(*batch.arguments(), batch.scale, out=batch.query)
    assert_same_bits(batch.query.cpu(), expected.cpu())


@pytest.mark.parametrize("dtype", [torch.bfloat16, E4M3], ids=str)
def test_every_query_sees_all_keys_without_a_causal_mask(device: Device, dtype: torch.dtype) -> None:
    batch = make([(20, 70), (2, 65), (33, 10), (17, 0)], (4, 2), 64, cache_dtype=dtype)
    sinks = torch.linspace(-1, 1, 4)
    result = run(device, batch, causal=False, sinks=sinks)
    check_result(result, without_causal_mask(batch), sinks=sinks)


def test_equals_the_cpu_backend(device: Device) -> None:
    batch = make(MIXED, (4, 2), 64)
    out, lse = run(device, batch)
    on_cpu = replace(batch, query=batch.query.float())
    expected, expected_lse = ops.paged_attention(*on_cpu.arguments(), batch.scale, return_lse=True)
    torch.testing.assert_close(out.float(), expected, rtol=2**-8, atol=2e-2)
    torch.testing.assert_close(lse, expected_lse, rtol=2e-6, atol=4e-6)


# ---- the same bits whatever surrounds a row ---------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [{}, {"window": 50, "softcap": 5.0}, {"sinks": torch.linspace(-1, 1, 4)}]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: ",".join(o))
def test_bits_do_not_depend_on_the_batch(device: Device, options: dict[str, Any]) -> None:
    requests = random_requests(MIXED, 4, 2, 64, seed=3)
    whole = of(requests, torch.bfloat16)
    expected = run(device, whole, **options)
    for index in (0, 2, 4):
        alone = of(
            tuple([x[index]] for x in requests), torch.bfloat16, block_size=24, head_major=True, seed=5
        )
        for one, all_of_them in zip(run(device, alone, **options), expected, strict=True):
            assert_same_bits(one, all_of_them[rows_of(whole, index)])


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, E4M3], ids=str)
@pytest.mark.parametrize("dim", [64, 256])
@pytest.mark.parametrize("options", OPTIONS[:2], ids=lambda o: ",".join(o))
def test_bits_do_not_depend_on_chunks(
    device: Device, options: dict[str, Any], dim: int, cache_dtype: torch.dtype
) -> None:
    """Chunks of more rows than the kernel for few takes."""
    length = 140
    (query,), (keys,), (values,) = random_requests([(length, length)], 4, 2, dim, seed=11)
    expected = run(device, of(([query], [keys], [values]), torch.bfloat16, cache_dtype), **options)
    for chunk in (9, 50):
        starts = list(range(0, length, chunk))[-3:]
        parts = [(slice(s, min(s + chunk, length))) for s in starts]
        batch = of(
            ([query[p] for p in parts], [keys[: p.stop] for p in parts], [values[: p.stop] for p in parts]),
            torch.bfloat16,
            cache_dtype,
        )
        results = run(device, batch, **options)
        for i, part in enumerate(parts):
            if (part.stop - part.start) * 2 <= 16:
                continue
            for one, all_of_them in zip(results, expected, strict=True):
                assert_same_bits(one[rows_of(batch, i)], all_of_them[part])


def test_nan_stays_in_its_request(device: Device) -> None:
    requests = random_requests([(20, 90), (30, 70), (17, 100)], 4, 2, 64, seed=6)
    clean = run(device, of(requests, torch.bfloat16))
    for tensors in requests:
        tensors[1][...] = torch.nan
    dirty = run(device, of(requests, torch.bfloat16))
    for one, other in zip(clean, dirty, strict=True):
        assert_same_bits(one[:20], other[:20])
        assert_same_bits(one[50:], other[50:])
        assert other[20:50].isnan().all()


def test_long_prompt(device: Device) -> None:
    """Many tiles of rows and of keys."""
    if device.name == "simt-checked":
        pytest.skip("long: on the fast build only")
    check(device, make([(300, 420), (150, 150)], (3, 1), 128))


# ---- values that no host can check -------------------------------------------------------------------------


def test_missing_blocks_are_left_out(device: Device) -> None:
    lengths = [(20, 300), (17, 64), (33, 40)]
    batch = make(lengths, (4, 2), 64, spare_blocks=0)
    keep = [torch.ones(n, dtype=torch.bool) for _, n in lengths]
    num_blocks = batch.key_cache.shape[0]
    for request, index, block in [(0, 3, -1), (0, 17, num_blocks), (1, 0, 2**31 - 1)]:
        batch.block_tables[request, index] = block
        keep[request][index * 16 : index * 16 + 16] = False
    batch.block_tables[2] = -1
    out, lse = run(device, batch)
    # The queries' positions are as before, so compare those that see all keys that are left.
    last = [rows_of(batch, b).stop - 1 for b in range(3)]
    left = paged(
        [batch.query[[i]] for i in last],
        [k[m] for k, m in zip(batch.keys, [*keep[:2], torch.zeros(40, dtype=torch.bool)], strict=True)],
        [v[m] for v, m in zip(batch.values, [*keep[:2], torch.zeros(40, dtype=torch.bool)], strict=True)],
        dtype=torch.bfloat16,
    )
    check_result((out[last], lse[last]), left)


GARBAGE = random.Random(1)
NONSENSE = [
    [GARBAGE.choice([GARBAGE.randint(-(2**31), 2**31 - 1), GARBAGE.randint(-2, 62)]) for _ in range(3)]
    for _ in range(6)
]


@pytest.mark.parametrize(
    "cu_seqlens_q",
    [[0, 300, 40], [-5, 20, 90], [0, 2**31 - 1, 60], [50, 20, 60], [0, -(2**31), 60], *NONSENSE],
    ids=str,
)
def test_lengths_that_make_no_sense_stay_in_bounds(device: Device, cu_seqlens_q: list[int]) -> None:
    batch = make([(20, 64), (40, 100)], (4, 2), 64)
    batch.cu_seqlens_q[:] = torch.tensor(cu_seqlens_q)
    for seq_lens in ([2**31 - 1, -3], [-(2**31), 2**31 - 1], [64, 5000]):
        batch.seq_lens[:] = torch.tensor(seq_lens)
        batch.block_tables[batch.block_tables > 1000] = 2**31 - 1
        run(device, batch)
        run(device, batch, window=7)
