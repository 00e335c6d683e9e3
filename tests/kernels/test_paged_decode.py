"""The CUDA source of paged attention for requests with few queries, against float64 and against itself.

The caches of ``paged`` hold NaN in every slot that no request owns, so each test here also shows that such
slots are never used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import attention_checks
import pytest
import torch
from attention_checks import (
    E4M3,
    check_result,
    make,
    of,
    put,
    rows_of,
    spoil_before_window,
    without_causal_mask,
)
from harness import Device, simt_module
from op_checks import assert_same_bits
from paged_attention_reference import Batch, paged, random_requests, reference
from torch import Tensor

from inferx import _C, ops
from inferx.ops._lib import use_kernels

DTYPES = [torch.bfloat16, torch.float16]
LENGTHS = [(1, n) for n in (0, 1, 3, 17, 37, 64, 65, 129, 511, 513, 1025)]
SHORT = [(1, 0), (1, 7), (0, 40), (1, 65), (1, 200)]


def run(device: Device, batch: Batch, scale: float | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    """Only the kernels for few queries are started."""
    group = batch.query.shape[1] // batch.key_cache.shape[2]
    return attention_checks.run(device, batch, scale, max_query_len=max(16 // group, 1), **options)


def check(device: Device, batch: Batch, scale: float | None = None, **options: Any) -> None:
    result = run(device, batch, scale, **options)
    options.pop("split_size", None)
    check_result(result, batch, scale, **options)


def with_multiprocessors(device: Device, count: int) -> Device:
    """The executor's GPU has so many; a real one has what it has."""
    return Device(device.name, num_sms=count) if device.is_simt else device


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [8, 24, 64, 72, 80, 96, 128, 256])
def test_matches_float64(device: Device, dim: int, dtype: torch.dtype) -> None:
    check(device, make(LENGTHS if dim in (64, 128) else LENGTHS[::2], (4, 1), dim, dtype))


@pytest.mark.parametrize("group", [1, 3, 4, 7, 8, 16, 20])
def test_groups_and_several_queries(device: Device, group: int) -> None:
    most = max(16 // group, 1)
    lengths = [(min(q, most), s) for q, s in [(1, 130), (2, 65), (3, 37), (4, 260), (0, 40), (4, 3), (1, 0)]]
    check(device, make(lengths, (2 * group, 2), 64), split_size=128)


@pytest.mark.parametrize("head_major", [False, True])
@pytest.mark.parametrize("block_size", [8, 16, 24, 64])
def test_block_sizes(device: Device, block_size: int, head_major: bool) -> None:
    check(device, make([*SHORT, (2, 300)], (4, 2), 64, block_size=block_size, head_major=head_major))


@pytest.mark.parametrize("window", [1, 15, 64, 100, 5000])
def test_window(device: Device, window: int) -> None:
    batch = make([*SHORT, (4, 3), (3, 400)], (4, 2), 64)
    for b, seq_len in enumerate(batch.seq_lens.tolist()):  # keys before it may be anything
        q_len = rows_of(batch, b).stop - rows_of(batch, b).start
        for position in range(max(seq_len - q_len + 1 - window, 0)):
            block = batch.block_tables[b, position // 16]
            for cache in (batch.key_cache, batch.value_cache):
                cache[block, position % 16] = torch.nan
    spoil_before_window(batch, window)
    check(device, batch, window=window, split_size=64)


@pytest.mark.parametrize("softcap", [0.5, 50.0])
def test_softcap(device: Device, softcap: float) -> None:
    check(device, make([*SHORT, (2, 300)], (4, 2), 64, torch.float16, spread=4.0), softcap=softcap)


def test_sinks(device: Device) -> None:
    sinks = torch.tensor([-torch.inf, -3.0, 0.5, 40.0])
    batch = make([*SHORT, (4, 3), (2, 300)], (4, 2), 64)
    check(device, batch, sinks=sinks)
    check(device, batch, sinks=sinks, window=33, softcap=3.0, split_size=128)


def test_rows_without_keys(device: Device) -> None:
    batch = make([(3, 1), (2, 0), (1, 5)], (4, 2), 64)
    out, lse = run(device, batch)
    empty = [0, 1, 3, 4]
    assert (out[empty] == 0).all()
    assert (lse[empty] == -torch.inf).all()
    assert (out[[2, 5]] != 0).all()
    sinks = torch.tensor([1.0, 2.0, 3.0, -torch.inf])
    out, lse = run(device, batch, sinks=sinks)
    assert (out[empty] == 0).all()
    torch.testing.assert_close(lse[empty], sinks.expand(4, 4), rtol=2e-7, atol=0)


def test_every_query_sees_all_keys_without_a_causal_mask(device: Device) -> None:
    batch = make([(4, 3), (2, 300), (0, 5), (3, 0)], (4, 2), 64)
    sinks = torch.linspace(-1, 1, 4)
    result = run(device, batch, causal=False, sinks=sinks, split_size=64)
    check_result(result, without_causal_mask(batch), sinks=sinks)


def test_scores_far_below_any_mask_value(device: Device) -> None:
    generator = torch.Generator().manual_seed(7)
    keys = torch.randint(-4, 5, (700, 1, 64), generator=generator).float()
    keys[:, :, 0] = -99840.0  # a bfloat16; scores stay exact in float32
    query = torch.zeros(1, 1, 64)
    query[:, :, 0] = 1.0
    query[:, :, 1:] = torch.randint(-1, 2, (1, 1, 63), generator=generator).float()
    batch = paged([query], [keys], [torch.randn(700, 1, 64, generator=generator)], dtype=torch.bfloat16)
    batch.query = batch.query.bfloat16()
    for scale in (1.0, -1.0):
        out, lse = run(device, batch, scale)
        expected, expected_lse = reference(batch, scale)
        torch.testing.assert_close(out.double(), expected, rtol=0, atol=1.5e-2)
        torch.testing.assert_close(lse.double(), expected_lse, rtol=2e-7, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [8, 64, 72, 80, 96, 128, 256])
def test_float8_cache(device: Device, dim: int, dtype: torch.dtype) -> None:
    batch = make([*SHORT, (2, 300)], (4, 2), dim, dtype, cache_dtype=E4M3)
    k_scale, v_scale = torch.tensor([0.75, 1.5]), torch.tensor([3.0])
    check(device, batch, k_scale=k_scale, v_scale=v_scale, split_size=128)


def test_float8_scales(device: Device) -> None:
    batch = make([(1, 65), (2, 200)], (4, 2), 64, cache_dtype=E4M3, head_major=True)
    check(device, batch)
    check(device, batch, k_scale=torch.tensor(0.5), v_scale=torch.tensor([0.25, 2.0]), softcap=2.0)
    # A query that float16 cannot hold, and one that it would round to zero.
    for factor in (1e30, 1e-30):
        scaled = replace(batch, query=(batch.query.float() * factor).bfloat16())
        check(device, scaled, batch.scale / factor)


def test_float8_values(device: Device) -> None:
    """Each of the 256 bytes: as a key it sets a score, as a value it is the output."""
    codes = torch.arange(256, dtype=torch.uint8).view(E4M3)
    finite = codes.float().isfinite()
    values = codes[:, None, None].expand(256, 1, 64).contiguous()
    tables = torch.arange(32, dtype=torch.int32)[:, None].repeat(1, 1)
    cache = values.view(32, 8, 1, 64)
    queries = torch.zeros(32, 1, 64, dtype=torch.bfloat16)
    lens = torch.arange(32).remainder(8).add(1).to(torch.int32)
    # A request of one key gives that key's value, and its score as the log-sum-exp.
    queries[:, 0, 0] = 1.0
    for first in range(8):  # the block of request b begins with byte 8 b + first
        rolled = cache.roll(-first, dims=1).contiguous()
        with device:
            out, lse = ops.paged_attention(
                device.put(queries), device.put(rolled), device.put(rolled), device.put(tables),
                device.put(torch.arange(33, dtype=torch.int32)), device.put(torch.ones_like(lens)),
                1.0, return_lse=True, max_query_len=1,
            )  # fmt: skip
        byte = torch.arange(32) * 8 + first
        ok = finite[byte]
        assert torch.equal(out.cpu()[ok, 0, 5].float(), codes[byte].float()[ok])
        torch.testing.assert_close(lse.cpu()[ok, 0], codes[byte].float()[ok], rtol=2e-7, atol=1e-9)
        assert out.cpu()[~ok].isnan().all()


def test_strided(device: Device) -> None:
    batch = make([(1, 65), (3, 200), (1, 0)], (4, 2), 64)
    expected, expected_lse = run(device, batch, split_size=64)
    fused = device.put(torch.randn(5, 8, 64).bfloat16())
    query = fused[:, 1:5]
    query.copy_(batch.query)
    both = device.put(torch.stack([batch.key_cache, batch.value_cache], dim=1))
    outs, lses = (device.put(torch.full(s, 7.0)) for s in ((5, 6, 128), (4, 9)))  # wider than what is written
    outs = outs.bfloat16()
    moved = put(device, batch)
    rows = moved.arguments()[3:]
    with device:
        torch.ops.inferx.paged_attention(
            outs[:, 2:, :64], lses[:, ::2].T, query, both[:, 0], both[:, 1], *rows, batch.scale,
            max_query_len=4, split_size=64,
        )  # fmt: skip
    assert_same_bits(outs[:, 2:, :64].cpu(), expected)
    assert_same_bits(lses[:, ::2].T.cpu(), expected_lse)
    assert (outs[:, :2] == 7).all()
    assert (outs[:, :, 64:] == 7).all()
    assert (lses[:, 1::2] == 7).all()


def test_output_in_place_of_the_query(device: Device) -> None:
    for dim, split_size in ((64, 64), (256, 512)):
        batch = make([(1, 65), (3, 200), (1, 0)], (4, 2), dim)
        expected, _ = run(device, batch, split_size=split_size)
        moved = put(device, batch)
        with device:
            ops.paged_attention(
                *moved.arguments(), batch.scale, out=moved.query, max_query_len=4, split_size=split_size
            )
        assert_same_bits(moved.query.cpu(), expected)


def test_offsets_beyond_32_bits(device: Device) -> None:
    """A cache of more than 2^32 elements, of which only a few pages are ever touched."""
    blocks = 2**22 + 8
    cache = torch.empty((blocks, 16, 1, 64), dtype=torch.uint8, device=device.torch_device).view(E4M3)
    batch = make([(1, 40)], (2, 1), 64, cache_dtype=E4M3)
    far = torch.tensor([[blocks - 1, 2**21 + 3, 2**22 - 1]], dtype=torch.int32)
    cache.view(torch.uint8)[far[0]] = device.put(batch.key_cache[batch.block_tables[0]]).view(torch.uint8)
    expected = run(device, replace(batch, value_cache=batch.key_cache))
    query, _, _, _, *lengths = put(device, batch).arguments()
    with device:
        out = ops.paged_attention(
            query, cache, cache, device.put(far), *lengths, batch.scale, max_query_len=1
        )
    assert isinstance(out, Tensor)
    assert_same_bits(out.cpu(), expected[0])


# ---- the same bits whatever surrounds a row ---------------------------------------------------------------

BATCH = [(1, 700), (2, 130), (0, 9), (1, 64), (4, 300), (1, 0), (1, 1025)]


@pytest.mark.parametrize("options", [{}, {"window": 150, "softcap": 5.0}], ids=str)
@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, E4M3], ids=str)
def test_bits_do_not_depend_on_the_batch(
    device: Device, cache_dtype: torch.dtype, options: dict[str, Any]
) -> None:
    requests = random_requests(BATCH, 4, 2, 64, seed=3)

    def batch_of(indices: list[int], **layout: Any) -> Batch:
        chosen = tuple([x[i] for i in indices] for x in requests)
        return of(chosen, torch.bfloat16, cache_dtype, **layout)

    options = {**options, "split_size": 128}
    whole = batch_of(list(range(len(BATCH))))
    expected = run(device, whole, **options)
    for count in (1, 2, 11):
        out, lse = run(with_multiprocessors(device, count), whole, **options)
        assert_same_bits(out, expected[0])
        assert_same_bits(lse, expected[1])
    for index in (0, 1, 4):
        rows = rows_of(whole, index)
        out, lse = run(device, batch_of([index], block_size=24, head_major=True, seed=5), **options)
        assert_same_bits(out, expected[0][rows])
        assert_same_bits(lse, expected[1][rows])


def test_bits_do_not_depend_on_the_scratch(device: Device) -> None:
    """Without scratch, or with too little for all, requests are read by fewer CTAs: same arithmetic."""
    batch = make(BATCH, (4, 2), 80)
    sinks = torch.linspace(-1, 1, 4)
    expected, expected_lse = run(device, batch, split_size=64, sinks=sinks)
    moved = put(device, batch)
    results = []
    for size in (None, 32 + 41 * 82 * 4, 32 + 75 * 82 * 4, 1 << 20):
        out, lse = torch.empty_like(moved.query), moved.query.new_empty(10, 4, dtype=torch.float32)
        workspace = None if size is None else device.put(torch.full((size,), 255, dtype=torch.uint8))
        with with_multiprocessors(device, 1):  # so that a CTA takes several heads one after another
            torch.ops.inferx.paged_attention(
                out, lse, *moved.arguments(), batch.scale, sinks=device.put(sinks), split_size=64,
                max_query_len=4, workspace=workspace,
            )  # fmt: skip
        assert_same_bits(out.cpu(), expected)
        assert_same_bits(lse.cpu(), expected_lse)
        plan = [] if workspace is None else workspace[:28].cpu().view(torch.int32).tolist()
        results.append([p >= 0 for p in plan])
    split = [length > 64 and queries > 0 for queries, length in BATCH]
    assert results[3] == split
    assert 0 < sum(results[2]) < sum(split)
    assert sum(results[1]) == 0 or sum(results[1]) < sum(results[2])


def test_nan_stays_in_its_request(device: Device) -> None:
    requests = random_requests([(1, 200), (2, 70), (1, 300)], 4, 2, 64, seed=6)
    clean = run(device, of(requests, torch.bfloat16), split_size=64)
    for tensors in requests:
        tensors[1][...] = torch.nan
    dirty = run(device, of(requests, torch.bfloat16), split_size=64)
    for one, other in zip(clean, dirty, strict=True):
        assert_same_bits(one[[0, 3]], other[[0, 3]])
        assert other[1:3].isnan().all()


# ---- values that no host can check -------------------------------------------------------------------------


def test_missing_blocks_are_left_out(device: Device) -> None:
    batch = make([(1, 300), (1, 64), (1, 40)], (4, 2), 64, spare_blocks=0)
    keep = [torch.ones(n, dtype=torch.bool) for n in (300, 64, 40)]
    num_blocks = batch.key_cache.shape[0]
    for request, index, block in [(0, 3, -1), (0, 18, num_blocks), (1, 0, 2**31 - 1), (2, 0, -(2**31))]:
        batch.block_tables[request, index] = block
        keep[request][index * 16 : index * 16 + 16] = False
    batch.block_tables[2] = -1
    keep[2][:] = False
    out, lse = run(device, batch, split_size=128)
    rest = replace(
        batch,
        keys=[k[m] for k, m in zip(batch.keys, keep, strict=True)],
        values=[v[m] for v, m in zip(batch.values, keep, strict=True)],
    )
    expected, expected_lse = reference(rest)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-2)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=2e-6, atol=4e-6)
    assert (out[2] == 0).all()


@pytest.mark.parametrize(
    ("cu_seqlens_q", "seq_lens"),
    [
        ([0, 1, 2, 3], [-5, 2**31 - 1, 40]),
        ([0, 1, 2**31 - 1, 5], [100, 100, 40]),
        ([-7, -3, 0, 3], [100, 100, 40]),
        ([3, 2, 1, 0], [100, 100, 40]),
    ],
)
def test_nonsense_stays_in_bounds(device: Device, cu_seqlens_q: list[int], seq_lens: list[int]) -> None:
    """The executor fences every tensor.  Requests whose own lengths make sense are not disturbed."""
    batch = make([(1, 100), (1, 100), (1, 40)], (4, 2), 64)
    expected, _ = run(device, batch)
    batch.block_tables.clamp_(max=batch.key_cache.shape[0] - 1)
    batch.cu_seqlens_q = torch.tensor(cu_seqlens_q, dtype=torch.int32)
    batch.seq_lens = torch.tensor(seq_lens, dtype=torch.int32)
    out, _ = run(device, batch)
    if cu_seqlens_q == [0, 1, 2, 3]:
        assert_same_bits(out[2], expected[2])
        assert (out[0] == 0).all()


# ---- the rest ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"window": 50, "softcap": 3.0}], ids=str)
def test_same_as_on_the_cpu(device: Device, options: dict[str, Any]) -> None:
    batch = make([(1, 130), (3, 70), (1, 0), (1, 600)], (4, 2), 72, torch.float16)
    sinks = torch.linspace(-1, 1, 4)
    out, lse = run(device, batch, sinks=sinks, **options)
    on_cpu = ops.paged_attention(
        batch.query.float(), *batch.arguments()[1:], batch.scale, sinks=sinks, return_lse=True, **options
    )
    torch.testing.assert_close(out.float(), on_cpu[0], rtol=0, atol=2e-3)
    torch.testing.assert_close(lse, on_cpu[1], rtol=2e-6, atol=4e-6)


def test_empty_batches(device: Device) -> None:
    cache = device.put(torch.zeros(2, 16, 2, 64).bfloat16())
    for batch, tokens in ((0, 0), (3, 0), (0, 2)):
        query = device.put(torch.zeros(tokens, 4, 64).bfloat16())
        lens, starts, tables = (torch.zeros(n, dtype=torch.int32) for n in (batch, batch + 1, batch))
        arguments = [device.put(t) for t in (tables[:, None], starts, lens)]
        with device:
            out = ops.paged_attention(query, cache, cache, *arguments, 1.0)
        assert isinstance(out, Tensor)
        assert out.shape == (tokens, 4, 64)


def test_torch_compile() -> None:
    batch = make([(1, 600), (2, 70)], (4, 2), 64)

    def attend(query: Tensor) -> Any:
        return ops.paged_attention(
            query * 2.0, *batch.arguments()[1:], 0.125, return_lse=True, max_query_len=2
        )

    with use_kernels(simt_module("inferx_simt_fast")):
        expected = attend(batch.query)
        actual = torch.compile(attend, backend="aot_eager", fullgraph=True)(batch.query)
    for one, other in zip(actual, expected, strict=True):
        assert_same_bits(one, other)


def test_no_bank_conflicts(device: Device) -> None:
    if device.module is None:
        pytest.skip("the executor counts them")
    for dim in (64, 80, 96, 128, 256):
        for cache_dtype in (torch.bfloat16, E4M3):
            run(device, make([(1, 64)], (1, 1), dim, cache_dtype=cache_dtype))
            stats = device.module.stats()
            assert stats["ldmatrix"] > 0
            assert stats["ldmatrix_extra"] == 0


def test_refuses(device: Device) -> None:
    batch = put(device, make([(1, 60), (2, 90)], (4, 2), 64))

    def fails(message: str, changed: dict[str, Any] | None = None, **options: Any) -> None:
        with device, pytest.raises(ValueError, match="paged_attention: " + message):
            ops.paged_attention(*replace(batch, **(changed or {})).arguments(), 0.125, **options)

    wide = device.put(torch.zeros(3, 4, 65).bfloat16())
    fails("query: expected rows that begin at multiples of 16 bytes", {"query": wide[..., :64]})
    fails(
        "query: expected rows that begin at multiples of 16 bytes",
        {"query": wide.flatten()[4:772].view(3, 4, 64)},
    )
    fails("out: expected rows that begin at multiples of 16 bytes", out=wide[..., :64])
    odd = device.put(torch.zeros(9, 12, 2, 64).bfloat16())
    fails(
        "key_cache: expected a block size that is a multiple of 8, got 12",
        {"key_cache": odd, "value_cache": odd},
    )
    half = {name: getattr(batch, name).half() for name in ("key_cache", "value_cache")}
    fails("key_cache: expected dtype bfloat16 as query, or float8_e4m3fn, got float16", half)
    fails("split_size: expected a multiple of 64, got 100", split_size=100)
    fails("split_size: expected a multiple of 64, got 0", split_size=0)
    fails("max_query_len: expected a number >= 0 or None, got -1", max_query_len=-1)
    scale = device.put(torch.ones(2))
    fails("k_scale: expected None for a cache of bfloat16, got a tensor", k_scale=scale)
    fp8 = {name: getattr(batch, name).float().to(E4M3) for name in ("key_cache", "value_cache")}
    fails(
        r"v_scale: expected one element or shape \[num_kv_heads=2\], got \[3\]",
        fp8,
        v_scale=device.put(torch.ones(3)),
    )
    fails("k_scale: expected dtype float32, got float64", fp8, k_scale=scale.double())
    fails("sinks: expected shape", sinks=scale)


def test_the_cpu_refuses_what_it_lacks() -> None:
    batch = make([(1, 60), (2, 90)], (4, 2), 64)
    with pytest.raises(ValueError, match="query: expected dtype float32, got bfloat16"):
        ops.paged_attention(*batch.arguments(), 0.125)
    floats = replace(batch, query=batch.query.float())
    with pytest.raises(ValueError, match="k_scale: expected None for a cache of bfloat16"):
        ops.paged_attention(*floats.arguments(), 0.125, k_scale=torch.ones(1))
    fp8 = {name: getattr(batch, name).float().to(E4M3) for name in ("key_cache", "value_cache")}
    with pytest.raises(
        ValueError, match="key_cache: expected dtype float32 or float16 or bfloat16, got float8"
    ):
        ops.paged_attention(*replace(floats, **fp8).arguments(), 0.125)
    out, lse = torch.empty_like(floats.query), None
    with pytest.raises(ValueError, match="causal: expected True on the CPU"):
        _C.paged_attention(out, lse, *floats.arguments(), 0.125, causal=False)
