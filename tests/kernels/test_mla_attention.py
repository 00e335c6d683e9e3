"""The CUDA source of latent attention, against float64, the CPU backend and itself.

The caches of ``paged`` hold NaN in every slot that no request owns, so each test here also shows that such
slots are never used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_checks import check_result, rows_of
from harness import Device, simt_module
from op_checks import assert_same_bits
from paged_attention_reference import Batch, paged, random_requests
from torch import Tensor

from inferx import ops
from inferx.ops._lib import use_kernels

F32 = torch.float32
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
MIXED = [(1, 1), (1, 90), (20, 20), (0, 40), (9, 70), (5, 3), (1, 0), (2, 33)]
SHORT = [(1, 40), (3, 37), (0, 5), (2, 1)]


def of(queries: list[Tensor], keys: list[Tensor], value_dim: int, dtype: torch.dtype, **layout: Any) -> Batch:
    """Requests of queries and cache rows, whose beginnings are the values."""
    batch = paged(queries, keys, keys, dtype=layout.pop("cache_dtype", None) or dtype, **layout)
    values = [k[..., :value_dim] for k in batch.keys]
    return replace(batch, query=batch.query.to(dtype), values=values)


def make(
    lengths: list[tuple[int, int]],
    heads: int,
    dims: tuple[int, int],
    dtype: torch.dtype = F32,
    *,
    seed: int = 1,
    **layout: Any,
) -> Batch:
    """Random requests of (q_len, seq_len); dims: of a key and of a value."""
    queries, keys, _ = random_requests(lengths, heads, 1, dims[0], seed=seed)
    return of(queries, keys, dims[1], dtype, **layout)


def arguments(batch: Batch) -> tuple[Tensor, ...]:
    query, cache, _, *rest = batch.arguments()
    return query, cache[:, :, 0], *rest


def run(device: Device, batch: Batch, scale: float | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp."""
    tensors = [device.put(x) for x in arguments(batch)]
    with device:
        out, lse = ops.mla_attention(
            *tensors,
            batch.scale if scale is None else scale,
            value_dim=batch.values[0].shape[-1],
            return_lse=True,
            **options,
        )
    return out.cpu(), lse.cpu()


def check(device: Device, batch: Batch, scale: float | None = None, **options: Any) -> None:
    check_result(run(device, batch, scale, **options), batch, scale)


# ---- float32 arithmetic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [(8, 8), (24, 16), (80, 64), (576, 512), (1024, 1024)], ids=str)
def test_float32(device: Device, dims: tuple[int, int]) -> None:
    check(device, make(MIXED if dims[0] < 500 else SHORT, 3, dims))


@pytest.mark.parametrize("cache_dtype", FLOATS, ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 64])
def test_float32_caches(device: Device, block_size: int, cache_dtype: torch.dtype) -> None:
    check(device, make(SHORT, 4, (40, 32), block_size=block_size, cache_dtype=cache_dtype))


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
def test_dimensions_without_tensor_cores(device: Device, dtype: torch.dtype) -> None:
    check(device, make(SHORT, 4, (88, 56), dtype, block_size=5))


def test_equals_the_cpu_backend(device: Device) -> None:
    batch = make(MIXED, 3, (80, 64), cache_dtype=torch.bfloat16)
    out, lse = run(device, batch)
    expected, expected_lse = ops.mla_attention(*arguments(batch), batch.scale, value_dim=64, return_lse=True)
    torch.testing.assert_close(out, expected, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(lse, expected_lse, rtol=2e-6, atol=4e-6)


# ---- tensor cores -----------------------------------------------------------------------------------------

SMALL, MINICPM3, DEEPSEEK = (80, 64), (288, 256), (576, 512)
BF16 = torch.bfloat16
# Splits of 512 keys: decodes and short chunks of several, a chunk of too many rows to be split, prompts.
SPLITS = [(1, 530), (3, 1030), (30, 600), (0, 40), (20, 20), (1, 1), (9, 512), (1, 0), (2, 33)]


@pytest.mark.parametrize("dtype", FLOATS[1:], ids=str)
@pytest.mark.parametrize("dims", [SMALL, MINICPM3, DEEPSEEK], ids=str)
def test_matches_float64(device: Device, dims: tuple[int, int], dtype: torch.dtype) -> None:
    check(device, make(MIXED if dims == SMALL else SHORT, 3, dims, dtype))
    check(device, make([(1, 65), (1, 0), (1, 7)], 16, dims, dtype), max_query_len=1)


@pytest.mark.parametrize("heads", [1, 3, 16, 40, 128])
def test_heads(device: Device, heads: int) -> None:
    check(device, make([(1, 1), (3, 70), (0, 9), (5, 3), (1, 40)], heads, SMALL, BF16))
    check(device, make([(1, 40), (1, 0), (1, 100)], heads, SMALL, BF16), max_query_len=1)


@pytest.mark.parametrize("block_size", [8, 16, 24, 64])
def test_block_sizes(device: Device, block_size: int) -> None:
    check(device, make(MIXED, 4, SMALL, BF16, block_size=block_size))


def test_splits(device: Device) -> None:
    check(device, make(SPLITS, 3, SMALL, BF16))


def test_scales(device: Device) -> None:
    batch = make(SHORT, 2, SMALL, torch.float16)
    for scale in (-0.3, 0.0, 2.0):
        check(device, batch, scale)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_rows_without_keys(device: Device, dtype: torch.dtype) -> None:
    batch = make([(3, 1), (2, 0), (1, 5), (40, 3)], 4, SMALL, dtype)
    out, lse = run(device, batch)
    check_result((out, lse), batch)
    empty = [0, 1, 3, 4, *range(6, 43)]
    assert (out[empty] == 0).all()
    assert (lse[empty] == -torch.inf).all()
    assert (out[[2, 5, 43, 44, 45]] != 0).any(-1).all()


def test_strided(device: Device) -> None:
    batch = make([(3, 60), (1, 90)], 4, SMALL, BF16)
    expected, expected_lse = run(device, batch)
    query, cache, *lists = (device.put(x) for x in arguments(batch))
    wide_query = device.put(torch.full((4, 6, 96), torch.nan).bfloat16())
    wide_query[:, 1:5, 8:88] = query
    layers = device.put(torch.full((cache.shape[0], 2, 16, 88), torch.nan).bfloat16())
    layers[:, 1, :, :80] = cache
    wide, lses = device.put(torch.full((4, 6, 80), 7.0).bfloat16()), device.put(torch.full((4, 8), 7.0))
    with device:
        torch.ops.inferx.mla_attention(
            wide[:, 2:, 8:72],
            lses[:, ::2].T,
            wide_query[:, 1:5, 8:88],
            layers[:, 1, :, :80],
            *lists,
            batch.scale,
            64,
        )
    assert_same_bits(wide[:, 2:, 8:72].cpu(), expected)
    assert_same_bits(lses[:, ::2].T.cpu(), expected_lse)
    wide[:, 2:, 8:72] = 7
    assert (wide == 7).all()
    assert (lses[:, 1::2] == 7).all()


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_offsets_beyond_32_bits(device: Device, dtype: torch.dtype) -> None:
    """A cache of more than 2^32 elements, of which only a few pages are ever touched."""
    blocks = 2**22 + 8
    cache = torch.empty((blocks, 16, 80), dtype=dtype, device=device.torch_device)
    batch = make([(1, 40)], 2, SMALL, dtype)
    query, near, tables, *lengths = (device.put(x) for x in arguments(batch))
    far = torch.tensor([[blocks - 1, 2**21 + 3, 2**22 - 1]], dtype=torch.int32)
    cache[far[0].long()] = near[tables[0].long()]
    expected = run(device, batch)
    with device:
        result = ops.mla_attention(
            query, cache, device.put(far), *lengths, batch.scale, value_dim=64, return_lse=True
        )
    for one, other in zip(result, expected, strict=True):
        assert_same_bits(one.cpu(), other)


# ---- the same bits whatever surrounds a row ---------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("block_size", [2**31, 2**32, 2**32 + 8])
def test_blocks_of_more_slots_than_an_int(device: Device, dtype: torch.dtype, block_size: int) -> None:
    """Such a cache exists as one row that is expanded; all keys are in a request's first block."""
    if not device.is_simt:
        pytest.skip("no expanded copy on a GPU")
    row = torch.randn(80).to(dtype)
    cache, table = row.expand(2, block_size, 80), device.put(torch.tensor([[1]], dtype=torch.int32))
    starts, lengths = (device.put(torch.tensor(x, dtype=torch.int32)) for x in ([0, 1], [30]))
    query = device.put(torch.randn(1, 3, 80).to(dtype))
    with device:
        out = ops.mla_attention(query, cache, table, starts, lengths, 0.1, value_dim=64)
    assert isinstance(out, Tensor)
    assert torch.allclose(out, row[:64].expand(1, 3, 64), rtol=1e-2, atol=1e-5)


def with_multiprocessors(device: Device, count: int) -> Device:
    """The executor's GPU has so many; a real one has what it has."""
    return Device(device.name, num_sms=count) if device.is_simt else device


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_bits_do_not_depend_on_the_batch(device: Device, dtype: torch.dtype) -> None:
    queries, keys, _ = random_requests(MIXED if dtype == F32 else SPLITS, 3, 1, 80, seed=3)
    whole = of(queries, keys, 64, dtype)
    expected = run(device, whole)
    for count in (1, 11):
        for one, other in zip(run(with_multiprocessors(device, count), whole), expected, strict=True):
            assert_same_bits(one, other)
    for index in (0, 1, 4, 6):
        alone = of([queries[index]], [keys[index]], 64, dtype, block_size=24, seed=5)
        for options in ({}, {"max_query_len": len(queries[index])}):
            for one, all_of_them in zip(run(device, alone, **options), expected, strict=True):
                assert_same_bits(one, all_of_them[rows_of(whole, index)])


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_bits_do_not_depend_on_chunks(device: Device, dtype: torch.dtype) -> None:
    """Decodes and chunks of any size give what the whole prompt does, across the ends of splits too."""
    length = 130 if dtype == F32 else 530  # float32 has no splits
    (query,), (keys,), _ = random_requests([(length, length)], 2, 1, 80, seed=11)
    expected = run(device, of([query], [keys], 64, dtype))
    ranges = [
        (0, 1),
        (1, 8),
        (127, 129),
        (length - 25, length),
        (length - 1, length),
        (length - 19, length - 18),
    ]
    parts = [slice(*r) for r in ranges]
    ends = [p.stop for p in parts]
    batch = of([query[p] for p in parts], [keys[:e] for e in ends], 64, dtype)
    for one, all_of_them in zip(run(device, batch), expected, strict=True):
        assert_same_bits(one, torch.cat([all_of_them[p] for p in parts]))
    decodes = of([query[e - 1 : e] for e in ends], [keys[:e] for e in ends], 64, dtype)
    for one, all_of_them in zip(run(device, decodes, max_query_len=1), expected, strict=True):
        assert_same_bits(one, torch.cat([all_of_them[e - 1 : e] for e in ends]))


def test_bits_do_not_depend_on_the_scratch(device: Device) -> None:
    """Without scratch, or with too little for all, requests are read by fewer CTAs: same arithmetic."""
    batch = make(SPLITS, 3, SMALL, BF16)
    expected, expected_lse = run(device, batch)
    tensors = [device.put(x) for x in arguments(batch)]
    plans = []
    for size in (None, 48 + 20 * 66 * 4, 48 + 30 * 66 * 4, 1 << 20):
        out, lse = device.put(torch.full((67, 3, 64), 7.0).bfloat16()), device.put(torch.full((67, 3), 7.0))
        workspace = None if size is None else device.put(torch.full((size,), 255, dtype=torch.uint8))
        with with_multiprocessors(device, 1):  # so that a CTA takes several units one after another
            torch.ops.inferx.mla_attention(out, lse, *tensors, batch.scale, 64, workspace=workspace)
        assert_same_bits(out.cpu(), expected)
        assert_same_bits(lse.cpu(), expected_lse)
        plan = [] if workspace is None else workspace[:36].cpu().view(torch.int32).tolist()
        plans.append([i for i, first in enumerate(plan) if first >= 0])
    assert plans == [[], [0], [0], [0, 1]]


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_nan_stays_in_its_request(device: Device, dtype: torch.dtype) -> None:
    queries, keys, _ = random_requests([(1, 200), (2, 70), (1, 600)], 4, 1, 80, seed=6)
    clean = run(device, of(queries, keys, 64, dtype))
    keys[1][...] = torch.nan
    dirty = run(device, of(queries, keys, 64, dtype))
    for one, other in zip(clean, dirty, strict=True):
        assert_same_bits(one[[0, 3]], other[[0, 3]])
        assert other[1:3].isnan().all()


# ---- values that no host can check -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_missing_blocks_are_left_out(device: Device, dtype: torch.dtype) -> None:
    batch = make([(1, 100), (1, 40), (20, 90)], 4, SMALL, dtype, spare_blocks=0)
    keep = [torch.ones(n, dtype=torch.bool) for n in (100, 40, 90)]
    num_blocks = batch.key_cache.shape[0]
    for request, index, block in [(0, 3, -1), (0, 5, num_blocks), (2, 1, -(2**31))]:
        batch.block_tables[request, index] = block
        keep[request][index * 16 : index * 16 + 16] = False
    batch.block_tables[1] = 2**31 - 1
    keep[1][:] = False
    result = run(device, batch)
    assert (result[0][1] == 0).all()
    last = [0, 1, 21]  # these see all that is left
    rest = replace(
        batch,
        query=batch.query[last],
        cu_seqlens_q=torch.arange(4),
        keys=[k[m] for k, m in zip(batch.keys, keep, strict=True)],
        values=[v[m] for v, m in zip(batch.values, keep, strict=True)],
    )
    check_result((result[0][last], result[1][last]), rest)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize(
    "cu_seqlens_q",
    [
        [0, 300, 4],
        [-5, 2, 9],
        [0, 2**31 - 1, 6],
        [5, 2, 6],
        [0, -(2**31), 1],
        [0, -3, 6],
        [6, 6, 6],
        [3, 1, 0],
    ],
    ids=str,
)
def test_lengths_that_make_no_sense_stay_in_bounds(
    device: Device, cu_seqlens_q: list[int], dtype: torch.dtype
) -> None:
    """The executor fences every tensor."""
    batch = make([(2, 64), (4, 600)], 4, SMALL, dtype)
    batch.cu_seqlens_q[:] = torch.tensor(cu_seqlens_q)
    for seq_lens in ([2**31 - 1, -3], [-(2**31), 2**31 - 1], [64, 5000]):
        batch.seq_lens[:] = torch.tensor(seq_lens)
        run(device, batch)


# ---- the rest ----------------------------------------------------------------------------------------------


def test_tensor_cores_equal_the_cpu_backend(device: Device) -> None:
    batch = make(SPLITS, 3, SMALL, torch.float16)
    out, lse = run(device, batch)
    query, *rest = arguments(batch)
    on_cpu = ops.mla_attention(query.float(), *rest, batch.scale, value_dim=64, return_lse=True)
    torch.testing.assert_close(out.float(), on_cpu[0], rtol=0, atol=2e-3)
    torch.testing.assert_close(lse, on_cpu[1], rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_empty_batches(device: Device, dtype: torch.dtype) -> None:
    cache = device.put(torch.zeros(2, 16, 80, dtype=dtype))
    for batch, tokens in ((0, 0), (3, 0), (0, 2)):
        lens, starts, tables = (torch.zeros(n, dtype=torch.int32) for n in (batch, batch + 1, batch))
        lists = [device.put(t) for t in (tables[:, None], starts, lens)]
        query = device.put(torch.zeros(tokens, 4, 80, dtype=dtype))
        with device:
            out = ops.mla_attention(query, cache, *lists, 1.0, value_dim=64)
        assert isinstance(out, Tensor)
        assert out.shape == (tokens, 4, 64)


def test_no_bank_conflicts(device: Device) -> None:
    if device.module is None:
        pytest.skip("the executor counts them")
    for dims in (SMALL, MINICPM3, DEEPSEEK):
        run(device, make([(1, 64)], 1, dims, BF16))
        stats = device.module.stats()
        assert stats["ldmatrix"] > 0
        assert stats["ldmatrix_extra"] == 0


def test_fits_small_multiprocessors(device: Device) -> None:
    """sm_89 and sm_120 give a block 99 KiB of shared memory."""
    if device.module is None:
        pytest.skip("a GPU has what it has")
    device.module.configure({"shared_limit": 99 * 1024})
    try:
        for dims, dtype in ((DEEPSEEK, BF16), ((1024, 1024), F32)):
            check(device, make([(1, 5), (9, 9)], 2, dims, dtype))
    finally:
        device.module.configure({"shared_limit": 227 * 1024})


def test_torch_compile() -> None:
    batch = make([(1, 600), (2, 70)], 4, SMALL, BF16)
    query, *rest = arguments(batch)

    def attend(query: Tensor) -> Any:
        return ops.mla_attention(query * 2.0, *rest, 0.125, value_dim=64, return_lse=True)

    with use_kernels(simt_module("inferx_simt_fast")):
        expected = attend(query)
        actual = torch.compile(attend, backend="aot_eager", fullgraph=True)(query)
    for one, other in zip(actual, expected, strict=True):
        assert_same_bits(one, other)


def test_refuses(device: Device) -> None:
    batch = make([(1, 60), (2, 90)], 4, SMALL, BF16)
    query, cache, *lists = (device.put(x) for x in arguments(batch))

    def fails(message: str, query: Tensor = query, cache: Tensor = cache, **options: Any) -> None:
        with device, pytest.raises(ValueError, match="mla_attention: " + message):
            ops.mla_attention(query, cache, *lists, 0.125, **{"value_dim": 64, **options})

    wide = device.put(torch.zeros(3, 4, 85).bfloat16())
    fails("query: expected rows that begin at multiples of 16 bytes", query=wide[..., :80])
    fails("out: expected rows that begin at multiples of 16 bytes", out=wide[..., :64])
    odd = device.put(torch.zeros(cache.shape[0], 12, 80).bfloat16())
    fails("kv_cache: expected a block size that is a multiple of 8, got 12", cache=odd)
    fails("kv_cache: expected dtype bfloat16 as query, got float16", cache=cache.half())
    fails("max_query_len: expected a number >= 0 or None, got -1", max_query_len=-1)
    fails("value_dim: expected a multiple of 8 from 8", value_dim=88)
    for bad in (torch.zeros(64), torch.zeros(8, 8, dtype=torch.uint8)):
        with device, pytest.raises(ValueError, match="mla_attention: workspace: expected"):
            torch.ops.inferx.mla_attention(
                query.new_empty(3, 4, 64), None, query, cache, *lists, 0.125, 64, workspace=device.put(bad)
            )
