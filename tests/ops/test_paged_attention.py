"""paged_attention and merge_attn_states against float64, and the bits of a row whatever surrounds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferx import _C, ops

sys.path.insert(0, str(Path(__file__).parent))
from paged_attention_reference import Batch, paged, random_requests, reference

MIXED = [(1, 1), (1, 700), (70, 70), (0, 40), (33, 600), (5, 3), (1, 0), (64, 1100), (1, 512), (17, 129)]
HEADS = [(9, 3), (4, 1), (14, 2), (5, 5)]
DIMS = [8, 64, 72, 80, 96, 128, 256]


def run(batch: Batch, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    result = ops.paged_attention(*batch.arguments(), batch.scale, return_lse=True, **options)
    assert isinstance(result, tuple)
    return result


def check(batch: Batch, tolerance: float = 2e-6, **options: Any) -> None:
    """Outputs are means of values of size about 1, so an absolute tolerance of a few float32 steps fits."""
    out, lse = run(batch, **options)
    expected, expected_lse = reference(batch, **options)
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=tolerance, atol=2 * tolerance)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_matches_float64(dim: int, heads: tuple[int, int]) -> None:
    check(paged(*random_requests(MIXED, *heads, dim, seed=dim)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [8, 72, 128])
def test_cache_dtypes(dtype: torch.dtype, dim: int) -> None:
    check(paged(*random_requests(MIXED, 6, 2, dim, seed=1), dtype=dtype))
    check(paged(*random_requests([(1, 300), (2, 90)], 2, 2, dim, seed=1), dtype=dtype, head_major=True))


@pytest.mark.parametrize("window", [1, 2, 15, 64, 100, 513, 5000])
def test_window(window: int) -> None:
    check(paged(*random_requests(MIXED, 4, 2, 64, seed=2)), window=window)


@pytest.mark.parametrize("softcap", [0.5, 5.0, 50.0])
def test_softcap(softcap: float) -> None:
    check(paged(*random_requests(MIXED, 4, 2, 64, seed=3, spread=4.0)), tolerance=6e-6, softcap=softcap)


def test_sinks() -> None:
    sinks = torch.tensor([-torch.inf, -3.0, 0.5, 40.0])
    batch = paged(*random_requests(MIXED, 4, 2, 64, seed=4))
    check(batch, sinks=sinks)
    check(batch, sinks=sinks, window=33, softcap=3.0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 400)), min_size=1, max_size=4),
    heads=st.sampled_from(HEADS),
    dim=st.integers(1, 32).map(lambda n: 8 * n),
    block_size=st.sampled_from([1, 3, 8, 16, 24, 128]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    head_major=st.booleans(),
    window=st.sampled_from([0, 0, 1, 7, 100]),
    softcap=st.sampled_from([0.0, 0.0, 2.0]),
    with_sinks=st.booleans(),
)
def test_any_batch(
    lengths: list[tuple[int, int]],
    heads: tuple[int, int],
    dim: int,
    block_size: int,
    dtype: torch.dtype,
    head_major: bool,
    window: int,
    softcap: float,
    with_sinks: bool,
) -> None:
    batch = paged(
        *random_requests(lengths, *heads, dim, seed=5),
        block_size=block_size, dtype=dtype, head_major=head_major,
    )  # fmt: skip
    sinks = torch.linspace(-2, 2, heads[0]) if with_sinks else None
    check(batch, tolerance=4e-6, window=window, softcap=softcap, sinks=sinks)


def test_rows_without_keys() -> None:
    batch = paged(*random_requests([(3, 1), (2, 0), (1, 5)], 4, 2, 64, seed=6))
    out, lse = run(batch)
    empty = [0, 1, 3, 4]
    assert (out[empty] == 0).all()
    assert (lse[empty] == -torch.inf).all()
    assert (out[[2, 5]] != 0).all()
    assert lse[[2, 5]].isfinite().all()
    out, lse = run(batch, sinks=torch.tensor([1.0, 2.0, 3.0, -torch.inf]))
    assert (out[empty] == 0).all()
    assert torch.equal(lse[empty], torch.tensor([[1.0, 2.0, 3.0, -torch.inf]]).expand(4, 4))


def test_empty_batches() -> None:
    cache = torch.zeros(2, 16, 2, 64)

    def call(tokens: int, batch: int) -> torch.Tensor:
        return ops.paged_attention(  # type: ignore[return-value]
            torch.zeros(tokens, 4, 64),
            cache,
            cache,
            torch.zeros(batch, 1, dtype=torch.int32),
            torch.zeros(batch + 1, dtype=torch.int32),
            torch.zeros(batch, dtype=torch.int32),
            1.0,
        )

    assert call(0, 0).shape == (0, 4, 64)
    assert call(0, 3).shape == (0, 4, 64)


def test_scores_far_below_any_mask_value() -> None:
    """No finite stand-in for minus infinity: scores of -1e5 compete with each other only."""
    generator = torch.Generator().manual_seed(7)
    keys = torch.randint(-4, 5, (90, 1, 64), generator=generator).float()
    keys[:, :, 0] = -100000.0  # scores stay exact in float32
    query = torch.zeros(70, 1, 64)
    query[:, :, 0] = 1.0
    query[:, :, 1:] = torch.randint(-1, 2, (70, 1, 63), generator=generator).float()
    batch = paged([query], [keys], [torch.randn(90, 1, 64, generator=generator)])
    out = ops.paged_attention(*batch.arguments(), 1.0)
    expected, _ = reference(batch, scale=1.0)
    torch.testing.assert_close(out, expected.float(), rtol=2e-6, atol=2e-6)


def test_garbage_is_never_read() -> None:
    """`paged` fills unused slots, blocks and table entries with NaN and nonsense; inf must not differ."""
    batch = paged(*random_requests(MIXED, 4, 2, 64, seed=8))
    out, lse = run(batch)
    assert not out.isnan().any()
    assert not lse.isnan().any()
    for cache in (batch.key_cache, batch.value_cache):
        cache[cache.isnan()] = torch.inf
    again, lse_again = run(batch)
    assert torch.equal(out, again)
    assert torch.equal(lse, lse_again)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("q_len", [3, 70])
def test_rows_do_not_touch_keys_they_do_not_see(bad: float, q_len: int) -> None:
    """A NaN in a later key of the same request, or before the window, leaves the other rows' bits alone."""
    for dim in (64, 72):
        queries, keys, values = random_requests([(q_len, 200)], 2, 1, dim, seed=9)
        clean, _ = run(paged(queries, keys, values), window=50)
        keys[0][199], values[0][199] = bad, bad
        first = 200 - q_len - 50 + 1  # seen by the first row only
        keys[0][first], values[0][first] = bad, bad
        dirty, _ = run(paged(queries, keys, values), window=50)
        assert torch.equal(clean[1:-1], dirty[1:-1])
        assert dirty[0].isnan().all()
        assert dirty[-1].isnan().all()


# ---- the same bits whatever surrounds a row ---------------------------------------------------------------


def rows_of(batch: Batch, request: int) -> slice:
    return slice(int(batch.cu_seqlens_q[request]), int(batch.cu_seqlens_q[request + 1]))


def same(pair: tuple[torch.Tensor, ...], other: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(pair, other, strict=True))


VARIANTS: list[dict[str, Any]] = [{}, {"window": 100}, {"softcap": 5.0}, {"sinks": True}]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (8, 1)], ids=str)
@pytest.mark.parametrize("dim", [64, 72, 128])
def test_bits_do_not_depend_on_batch_chunks_blocks_threads(
    options: dict[str, Any], heads: tuple[int, int], dim: int
) -> None:
    if "sinks" in options:
        options = {"sinks": torch.linspace(-1, 1, heads[0])}
    queries, keys, values = random_requests(MIXED, *heads, dim, seed=10)
    mixed = paged(queries, keys, values)
    threads = ops.get_num_threads()
    try:
        ops.set_num_threads(1)
        out, lse = run(mixed, **options)
        for count in (2, 3):
            ops.set_num_threads(count)
            again, lse_again = run(mixed, **options)
            assert same((out, lse), (again, lse_again)), f"{count} threads"
        for block_size, head_major, seed in ((8, False, 1), (16, True, 2), (128, True, 3), (1, False, 4)):
            other = paged(
                queries, keys, values, block_size=block_size, head_major=head_major, seed=seed, spare_blocks=9
            )
            again, lse_again = run(other, **options)
            assert same((out, lse), (again, lse_again)), (block_size, head_major)
        for request in range(len(MIXED)):
            alone = paged(
                queries[request : request + 1], keys[request : request + 1], values[request : request + 1]
            )
            again, lse_again = run(alone, **options)
            rows = rows_of(mixed, request)
            assert same((out[rows], lse[rows]), (again, lse_again)), f"request {request} alone"
    finally:
        ops.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 16, 100, 256, 599])
def test_bits_do_not_depend_on_chunks(chunk: int, dtype: torch.dtype) -> None:
    length = 600
    queries, keys, values = random_requests([(length, length)], 6, 2, 80, seed=11)
    whole, whole_lse = run(paged(queries, keys, values, dtype=dtype), window=550)
    starts = range(0, length, chunk)
    if chunk == 1:
        starts = range(480, length)  # decode steps; the early ones are as the late ones
    for start in starts:
        stop = min(start + chunk, length)
        part = paged([queries[0][start:stop]], [keys[0][:stop]], [values[0][:stop]], dtype=dtype)
        out, lse = run(part, window=550)
        assert same((out, lse), (whole[start:stop], whole_lse[start:stop])), start


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("dim", "heads"), [(64, (3, 1)), (80, (2, 2)), (72, (6, 1)), (128, (14, 2))], ids=str
)
def test_16_bit_cache_gives_the_bits_of_a_float32_cache_of_its_values(
    dtype: torch.dtype, dim: int, heads: tuple[int, int]
) -> None:
    """Every finite pattern of 16 bits, subnormals included, in every kernel: one row, few, many."""
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = patterns[patterns.isfinite() & (patterns.abs() < 1e4)]
    per_head = finite.numel() // (heads[1] * dim)
    generator = torch.Generator().manual_seed(13)
    mixed = finite[torch.randperm(finite.numel(), generator=generator)][: per_head * heads[1] * dim]
    key = mixed.view(per_head, heads[1], dim).float()
    for q_len in (1, 2, 5, 45):
        query = torch.randn(q_len, heads[0], dim, generator=generator) * 1e-3
        narrow = paged([query], [key], [key.flip(0)], dtype=dtype)
        wide = paged([query], [key], [key.flip(0)])
        assert same(run(narrow), run(wide)), q_len


def test_one_long_decode_on_several_threads() -> None:
    batch = paged(*random_requests([(1, 5000)], 4, 2, 64, seed=12))
    threads = ops.get_num_threads()
    results = []
    try:
        for count in (1, 2, 4):
            ops.set_num_threads(count)
            results.append(run(batch))
    finally:
        ops.set_num_threads(threads)
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])
    check(batch)


# ---- memory ----------------------------------------------------------------------------------------------


def test_offsets_beyond_32_bits() -> None:
    """4e9 elements of cache, of which three blocks are ever touched (the rest is never mapped)."""
    block = 16 * 2 * 64
    blocks = 4_000_000_000 // block
    key_cache = torch.empty(blocks, 16, 2, 64, dtype=torch.float16)
    value_cache = torch.empty(blocks, 16, 2, 64, dtype=torch.float16)
    ids = [blocks - 1, blocks // 2 + 1, 0]
    generator = torch.Generator().manual_seed(13)
    keys, values = torch.randn(2, 40, 2, 64, generator=generator)
    query = torch.randn(40, 4, 64, generator=generator)
    slots = torch.cat([torch.arange(16) + 16 * i for i in ids])[:40]
    ops.reshape_and_cache_flash(keys, values, key_cache, value_cache, slots)
    out = ops.paged_attention(
        query, key_cache, value_cache, torch.tensor([ids], dtype=torch.int32),
        torch.tensor([0, 40], dtype=torch.int32), torch.tensor([40], dtype=torch.int32), 0.125,
    )  # fmt: skip
    small = paged([query], [keys], [values], dtype=torch.float16)
    assert torch.equal(out, ops.paged_attention(*small.arguments(), 0.125))


def test_strided_query_and_output() -> None:
    batch = paged(*random_requests([(5, 60), (1, 90)], 6, 2, 64, seed=14))
    expected, _ = run(batch)
    qkv = torch.full((6, 10, 64), torch.nan)
    qkv[:, :6] = batch.query
    wide = torch.full((6, 2, 6, 70), 7.0)
    out = wide[:, 1, :, :64]
    got = ops.paged_attention(qkv[:, :6], *batch.arguments()[1:], batch.scale, out=out)
    assert got is out
    assert torch.equal(out, expected)
    assert (wide[:, 0] == 7).all()
    assert (wide[..., 64:] == 7).all()
    query = batch.query.clone()
    ops.paged_attention(query, *batch.arguments()[1:], batch.scale, out=query)
    assert torch.equal(query, expected)


# ---- errors ----------------------------------------------------------------------------------------------


def replaced(batch: Batch, **changes: Any) -> tuple[Any, ...]:
    names = ["query", "key_cache", "value_cache", "block_tables", "cu_seqlens_q", "seq_lens"]
    return tuple(changes.get(name, value) for name, value in zip(names, batch.arguments(), strict=True))


def int32(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


BAD: list[tuple[str, dict[str, Any]]] = [
    (r"query: expected dtype float32, got float16", {"query": torch.zeros(6, 4, 64).half()}),
    (r"query: expected shape .*64\], got \[6, 4, 32\]", {"query": torch.zeros(6, 4, 32)}),
    (r"query: expected a number of heads that is a multiple of key_cache's 2, got 3",
     {"query": torch.zeros(6, 3, 64)}),
    (r"query: expected a contiguous last dim", {"query": torch.zeros(6, 64, 4).transpose(1, 2)}),
    (r"key_cache: expected 4 dimensions", {"key_cache": torch.zeros(10, 16, 64)}),
    (r"key_cache: expected dtype .*, got int8", {"key_cache": torch.zeros(10, 16, 2, 64, dtype=torch.int8)}),
    (r"value_cache: expected dtype float32 as key_cache, got bfloat16",
     {"value_cache": torch.zeros(10, 16, 2, 64).bfloat16()}),
    (r"value_cache: expected shape", {"value_cache": torch.zeros(9, 16, 2, 64)}),
    (r"block_tables: expected dtype int32, got int64",
     {"block_tables": torch.zeros(2, 6, dtype=torch.int64)}),
    (r"block_tables: expected shape", {"block_tables": torch.zeros(3, 6, dtype=torch.int32)}),
    (r"block_tables: expected block ids from 0 to 9, got 10 at \[1, 5\]",
     {"block_tables": int32([0, 1, 2, 3, 0, 0], [0, 1, 2, 3, 4, 10])}),
    (r"block_tables: expected block ids from 0 to 9, got -1 at \[0, 0\]",
     {"block_tables": int32([-1, 1, 2, 3, 0, 0], [0, 1, 2, 3, 4, 5])}),
    (r"cu_seqlens_q: expected 0 at \[0\], got 1", {"cu_seqlens_q": int32(1, 5, 6)}),
    (r"cu_seqlens_q: expected values that do not decrease, got 6 after 7 at \[2\]",
     {"cu_seqlens_q": int32(0, 7, 6)}),
    (r"cu_seqlens_q: expected T=6 .* at \[2\], got 5", {"cu_seqlens_q": int32(0, 4, 5)}),
    (r"cu_seqlens_q: expected shape", {"cu_seqlens_q": int32(0, 6)}),
    (r"seq_lens: expected lengths from 0 to 96 .*, got 97 at \[1\]", {"seq_lens": int32(60, 97)}),
    (r"seq_lens: expected lengths from 0 to 96 .*, got -1 at \[0\]", {"seq_lens": int32(-1, 90)}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "changes"), BAD, ids=[m for m, _ in BAD])
def test_wrong_arguments(message: str, changes: dict[str, Any]) -> None:
    batch = paged(*random_requests([(5, 60), (1, 90)], 4, 2, 64, seed=15), spare_blocks=0)
    assert batch.key_cache.shape[0] == 10
    with pytest.raises(ValueError, match="paged_attention: " + message):
        ops.paged_attention(*replaced(batch, **changes), 0.125)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("window: expected a positive number, or 0 for none, got -1", {"window": -1}),
        ("softcap: expected a number from 1e-37", {"softcap": -1.0}),
        ("softcap: expected a number from 1e-37", {"softcap": torch.nan}),
        (r"sinks: expected shape \[Hq=4\], got \[2\]", {"sinks": torch.zeros(2)}),
        ("sinks: expected dtype float32, got float64", {"sinks": torch.zeros(4).double()}),
        ("out: expected shape", {"out": torch.zeros(5, 4, 64)}),
        ("out: expected memory of its own", {"out": torch.zeros(1, 4, 64).expand(6, 4, 64)}),
    ],
)
def test_wrong_options(message: str, options: dict[str, Any]) -> None:
    batch = paged(*random_requests([(5, 60), (1, 90)], 4, 2, 64, seed=15))
    with pytest.raises(ValueError, match="paged_attention: " + message):
        ops.paged_attention(*batch.arguments(), 0.125, **options)


def test_head_dims_refused() -> None:
    for dim in (4, 12, 264):
        batch = paged(*random_requests([(1, 5)], 2, 1, dim, seed=16))
        with pytest.raises(ValueError, match=f"multiple of 8 from 8 to 256, got {dim}"):
            ops.paged_attention(*batch.arguments(), 1.0)


def test_torch_op() -> None:
    batch = paged(*random_requests([(5, 60), (1, 90)], 4, 2, 64, seed=17))
    out, lse = torch.empty_like(batch.query), torch.empty(6, 4)
    torch.ops.inferx.paged_attention(out, lse, *batch.arguments(), batch.scale)
    expected, expected_lse = run(batch)
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)


def test_torch_compile() -> None:
    batch = paged(*random_requests([(5, 60), (1, 90)], 4, 2, 64, seed=20))
    skip = torch.full((6,), -1)

    def attend(query: torch.Tensor) -> Any:
        first = ops.paged_attention(query * 2.0, *batch.arguments()[1:], 0.125, return_lse=True, window=7)
        second = ops.paged_attention(query, *batch.arguments()[1:], 0.125)
        ops.reshape_and_cache_flash(query[:, :2], query[:, 2:], batch.key_cache, batch.value_cache, skip)
        return ops.merge_attn_states(*first, second, first[1], return_lse=True)

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    assert same(compiled(batch.query), attend(batch.query))


# ---- how the work is cut ---------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("heads", [(9, 3), (64, 1), (8, 8), (300, 3)], ids=str)
@pytest.mark.parametrize(
    "lengths", [MIXED, [(1, 9000)], [(3000, 3000)], [(1, 100)] * 40], ids=lambda x: str(x[0])
)
def test_plan_covers_the_work_once(
    lengths: list[tuple[int, int]], heads: tuple[int, int], window: int, threads: int
) -> None:
    split, record = 512, 64 + 16
    cu_seqlens_q = int32(0, *torch.tensor([q for q, _ in lengths]).cumsum(0).tolist())
    seq_lens = int32(*[s for _, s in lengths])
    items, merges, partial_floats = _C._attention_plan(cu_seqlens_q, seq_lens, *heads, 64, window, threads)
    group = heads[0] // heads[1]

    done: dict[tuple[int, int, int], set[int]] = {}
    partials: set[int] = set()
    for request, head, num_heads, query, num_queries, first, end, partial in items:
        assert partial >= 0 or (first, end) == bounds(lengths[request], query, num_queries, window, split)
        for h in range(head, head + num_heads):
            for q in range(query, query + num_queries):
                seen = done.setdefault((request, h, q), set())
                assert seen.isdisjoint(range(first, end)), "a split is done twice"
                seen.update(range(first, end))
        if partial >= 0:
            size = (end - first) * num_heads * num_queries * group * record
            assert partial + size <= partial_floats
            assert partials.isdisjoint(range(partial, partial + size, record)), "two items write one partial"
            partials.update(range(partial, partial + size, record))
    assert len(partials) * record == partial_floats
    assert {p for *_, p in merges} <= partials
    expected = {
        (b, h, q): set(range(*bounds(length, q, 1, window, split)))
        for b, length in enumerate(lengths)
        for h in range(heads[1])
        for q in range(length[0])
    }
    assert done.keys() == expected.keys()
    assert all(done[key] >= splits for key, splits in expected.items())
    if threads == 1:
        assert not merges
    if lengths == [(1, 9000)] and not window and threads > 1:
        assert len(items) >= min(2 * threads, 18 * heads[1])


def bounds(length: tuple[int, int], query: int, num_queries: int, window: int, split: int) -> tuple[int, int]:
    """The splits that some of these queries see."""
    end = length[1] - length[0] + query + num_queries
    begin = max(length[1] - length[0] + query + 1 - window, 0) if window else 0
    return begin // split, max(-(-max(end, 0) // split), begin // split)


# ---- merge_attn_states -----------------------------------------------------------------------------------


def test_merge_of_two_halves_is_the_whole() -> None:
    queries, keys, values = random_requests([(1, 300)], 4, 2, 64, seed=18)
    sinks = torch.tensor([0.0, 1.0, -1.0, 2.0])
    whole, whole_lse = run(paged(queries, keys, values), sinks=sinks)
    first = run(paged(queries, [keys[0][:170]], [values[0][:170]]), sinks=sinks)
    second = run(paged(queries, [keys[0][170:]], [values[0][170:]]))
    out, lse = ops.merge_attn_states(*first, *second, return_lse=True)
    torch.testing.assert_close(out, whole, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(lse, whole_lse, rtol=2e-6, atol=1e-6)


def test_merge_matches_float64() -> None:
    generator = torch.Generator().manual_seed(19)
    for dim in (8, 72, 128):
        a, b = torch.randn(2, 7, 3, dim, generator=generator)
        lse_a, lse_b = (10 * torch.randn(3, 7, generator=generator).T for _ in range(2))  # strided
        lse_b[2, 1] = lse_a[3, 2] = lse_a[4, 0] = lse_b[4, 0] = -torch.inf
        b[2, 1] = a[3, 2] = a[4, 0] = b[4, 0] = torch.nan
        out, lse = ops.merge_attn_states(a, lse_a, b, lse_b, return_lse=True)
        expected_lse = torch.logaddexp(lse_a.double(), lse_b.double())
        weights = [torch.exp(x.double() - expected_lse).nan_to_num(0.0)[..., None] for x in (lse_a, lse_b)]
        expected = a.double().nan_to_num(0.0) * weights[0] + b.double().nan_to_num(0.0) * weights[1]
        torch.testing.assert_close(out.double(), expected, rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(lse.double(), expected_lse, rtol=2e-6, atol=2e-6)
        assert (out[4, 0] == 0).all()
        assert torch.equal(out[2, 1], a[2, 1])
        in_place = a.clone()
        assert ops.merge_attn_states(in_place, lse_a, b, lse_b, out=in_place) is in_place
        assert torch.equal(in_place, out)


def test_merge_refuses() -> None:
    a, lse = torch.zeros(3, 2, 8), torch.zeros(3, 2)
    assert ops.merge_attn_states(a[:0], lse[:0], a[:0], lse[:0]).shape == (0, 2, 8)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="merge_attn_states: suffix_output: expected shape"):
        ops.merge_attn_states(a, lse, a[:2], lse)
    with pytest.raises(ValueError, match="merge_attn_states: suffix_lse: expected shape"):
        ops.merge_attn_states(a, lse, a, lse[:2])
    with pytest.raises(ValueError, match="merge_attn_states: prefix_lse: expected dtype float32"):
        ops.merge_attn_states(a, lse.double(), a, lse)


# ---- the other instruction sets --------------------------------------------------------------------------


@pytest.mark.parametrize("isa", ["base", "v3"])
def test_other_instruction_sets(isa: str) -> None:
    if isa not in ops.build_info()["simd_targets"] or os.environ.get("INFERX_CPU_ISA"):
        pytest.skip("not compiled, or already capped")
    chosen = "matches_float64 or cache_dtypes or window or softcap or sinks or see or bits or merge or far"
    files = [__file__, str(Path(__file__).with_name("test_reshape_and_cache.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    result = subprocess.run(
        [*command, "-k", f"reshape or {chosen}"],
        env={**os.environ, "INFERX_CPU_ISA": isa}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
