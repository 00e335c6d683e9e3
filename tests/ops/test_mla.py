"""mla_attention and concat_and_cache_mla on the CPU: float64, the expanded form, the same bits anywhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inferx import ops

sys.path.insert(0, str(Path(__file__).parent))
from op_checks import FLOATS, check_on_instruction_set
from paged_attention_reference import Batch, paged, random_requests, reference

MIXED = [(1, 1), (1, 700), (20, 70), (0, 40), (33, 600), (5, 3), (1, 0), (9, 1100), (1, 512), (17, 129)]
Pair = tuple[Tensor, Tensor]


def latent(lengths: list[tuple[int, int]], heads: int, dim: int, value_dim: int, **options: Any) -> Batch:
    """Requests of (q_len, seq_len); all that no request uses is NaN.  ``values``: what the op should see."""
    batch = paged(*random_requests(lengths, heads, 1, dim, seed=dim + heads), **options)
    batch.values = [rows[..., :value_dim] for rows in batch.keys]
    return batch


def run(batch: Batch, value_dim: int, scale: float | None = None, **options: Any) -> Pair:
    result = ops.mla_attention(
        batch.query, batch.key_cache[:, :, 0], batch.block_tables, batch.cu_seqlens_q, batch.seq_lens,
        batch.scale if scale is None else scale, value_dim=value_dim, return_lse=True, **options,
    )  # fmt: skip
    assert isinstance(result, tuple)
    return result


def check(batch: Batch, value_dim: int) -> None:
    """Outputs are means of values of size about 1, so an absolute tolerance of a few float32 steps fits."""
    out, lse = run(batch, value_dim)
    expected, expected_lse = reference(batch)
    torch.testing.assert_close(out.double(), expected, rtol=4e-6, atol=4e-6)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=4e-6, atol=4e-6)


@pytest.mark.parametrize("heads", [1, 3, 16, 128])
@pytest.mark.parametrize("dims", [(16, 8), (40, 32), (72, 64), (144, 72), (576, 512)], ids=str)
def test_matches_float64(dims: tuple[int, int], heads: int) -> None:
    lengths = MIXED if heads <= 16 and dims[0] < 500 else [(1, 130), (2, 70), (7, 600)]
    check(latent(lengths, heads, *dims), dims[1])


@pytest.mark.parametrize("dims", [(1024, 1024), (1024, 8), (8, 8), (264, 256)], ids=str)
def test_ends_of_the_range(dims: tuple[int, int]) -> None:
    check(latent([(1, 1), (1, 600), (30, 70), (2, 1)], 5, *dims), dims[1])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("dims", [(40, 32), (576, 512)], ids=str)
def test_cache_dtypes(dtype: torch.dtype, dims: tuple[int, int]) -> None:
    lengths = [(1, 300), (2, 90), (13, 600)]
    check(latent(lengths, 16, *dims, dtype=dtype), dims[1])
    check(latent(lengths, 6, *dims, dtype=dtype, head_major=True), dims[1])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 300)), min_size=1, max_size=4),
    heads=st.sampled_from([1, 7, 16, 33]),
    dim=st.integers(1, 40).map(lambda n: 8 * n),
    narrower=st.integers(0, 39),
    block_size=st.sampled_from([1, 8, 16, 24, 64]),
    dtype=st.sampled_from(FLOATS),
)
def test_any_batch(
    lengths: list[tuple[int, int]],
    heads: int,
    dim: int,
    narrower: int,
    block_size: int,
    dtype: torch.dtype,
) -> None:
    value_dim = max(dim - 8 * narrower, 8)
    check(latent(lengths, heads, dim, value_dim, block_size=block_size, dtype=dtype), value_dim)


def test_absorbed_is_expanded() -> None:
    """Equations 9 to 19 of "DeepSeek-V2" with keys and values of each head made from the latent vectors."""
    heads, rank, rope, nope, v_dim = 16, 64, 16, 32, 24
    keys, tokens = 90, 13
    scale = (nope + rope) ** -0.5
    latents, rotary = torch.randn(keys, rank), torch.randn(keys, rope)
    q_nope, q_pe = torch.randn(tokens, heads, nope), torch.randn(tokens, heads, rope)
    kv_b_proj = torch.randn(heads, nope + v_dim, rank) * rank**-0.5

    expanded = torch.einsum("hdr,kr->khd", kv_b_proj, latents)
    key = torch.cat([expanded[..., :nope], rotary[:, None].expand(-1, heads, -1)], dim=-1)
    scores = torch.einsum("qhd,khd->hqk", torch.cat([q_nope, q_pe], dim=-1), key) * scale
    seen = torch.arange(keys) <= torch.arange(tokens)[:, None] + keys - tokens
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    expected = torch.einsum("hqk,khd->qhd", weights, expanded[..., nope:])

    kv_cache = torch.full((7, 16, rank + rope), torch.nan)
    table = torch.randperm(7)[None, :6].to(torch.int32)
    positions = torch.arange(keys)
    ops.concat_and_cache_mla(latents, rotary, kv_cache, table[0, positions // 16] * 16 + positions % 16)
    absorbed = torch.einsum("qhd,hdr->qhr", q_nope, kv_b_proj[:, :nope])
    out = ops.mla_attention(
        torch.cat([absorbed, q_pe], dim=-1), kv_cache, table,
        torch.tensor([0, tokens], dtype=torch.int32), torch.tensor([keys], dtype=torch.int32),
        scale, value_dim=rank,
    )  # fmt: skip
    assert isinstance(out, Tensor)
    actual = torch.einsum("qhr,hdr->qhd", out, kv_b_proj[:, nope:])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_rows_without_keys() -> None:
    out, lse = run(latent([(3, 1), (2, 0), (1, 5)], 16, 40, 32), 32)
    empty = [0, 1, 3, 4]
    assert (out[empty] == 0).all()
    assert (lse[empty] == -torch.inf).all()
    assert (out[[2, 5]] != 0).all()
    assert lse[[2, 5]].isfinite().all()


def test_empty_batches() -> None:
    for batch in (0, 3):
        out = ops.mla_attention(
            torch.zeros(0, 16, 40), torch.zeros(2, 16, 40), torch.zeros(batch, 1, dtype=torch.int32),
            torch.zeros(batch + 1, dtype=torch.int32), torch.zeros(batch, dtype=torch.int32),
            1.0, value_dim=32,
        )  # fmt: skip
        assert isinstance(out, Tensor)
        assert out.shape == (0, 16, 32)


def test_garbage_is_never_read() -> None:
    """`paged` fills unused slots, blocks and table entries with NaN and nonsense; inf must not differ."""
    batch = latent(MIXED, 16, 40, 32)
    out, lse = run(batch, 32)
    assert not out.isnan().any()
    assert not lse.isnan().any()
    batch.key_cache[batch.key_cache.isnan()] = torch.inf
    assert same(run(batch, 32), (out, lse))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_rows_do_not_touch_keys_they_do_not_see(bad: float) -> None:
    queries, keys, _ = random_requests([(3, 200)], 16, 1, 40, seed=9)
    clean, _ = run(paged(queries, keys, keys), 32)
    keys[0][199] = bad
    dirty, _ = run(paged(queries, keys, keys), 32)
    assert torch.equal(clean[:-1], dirty[:-1])
    assert dirty[-1].isnan().all()


def test_writes_into_out_with_strides() -> None:
    batch = latent(MIXED, 3, 40, 32)
    out = torch.full((len(batch.query), 5, 48), 7.0)
    view = out[:, 1:4, 8:40]
    assert run(batch, 32, out=view)[0] is view
    assert torch.equal(view, run(batch, 32)[0])
    assert (out[:, [0, 4]] == 7).all()
    assert (out[..., [*range(8), *range(40, 48)]] == 7).all()


# ---- the same bits whatever surrounds a row ---------------------------------------------------------------


def same(pair: Pair, other: Pair) -> bool:
    return torch.equal(pair[0], other[0]) and torch.equal(pair[1], other[1])


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = ops.get_num_threads()
    ops.set_num_threads(count)
    try:
        yield
    finally:
        ops.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", [3, 16, 40])
@pytest.mark.parametrize("dims", [(40, 32), (144, 128)], ids=str)
def test_bits_do_not_depend_on_batch_blocks_threads(
    dims: tuple[int, int], heads: int, dtype: torch.dtype
) -> None:
    dim, value_dim = dims
    queries, keys, values = random_requests(MIXED, heads, 1, dim, seed=10)
    mixed = paged(queries, keys, values, dtype=dtype)
    with threads(1):
        out, lse = run(mixed, value_dim)
    for count in (2, 3):
        with threads(count):
            assert same(run(mixed, value_dim), (out, lse)), f"{count} threads"
    for block_size, head_major, seed in ((8, False, 1), (16, True, 2), (24, False, 3), (64, True, 4)):
        other = paged(
            queries, keys, values, block_size=block_size, dtype=dtype, head_major=head_major,
            seed=seed, spare_blocks=9,
        )  # fmt: skip
        assert same(run(other, value_dim), (out, lse)), (block_size, head_major)
    starts = mixed.cu_seqlens_q.tolist()
    for b in range(len(MIXED)):
        alone = paged(queries[b : b + 1], keys[b : b + 1], values[b : b + 1], dtype=dtype)
        rows = slice(starts[b], starts[b + 1])
        assert same(run(alone, value_dim), (out[rows], lse[rows])), f"request {b} alone"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 64, 300, 599])
def test_bits_do_not_depend_on_chunks(chunk: int, dtype: torch.dtype) -> None:
    length = 600
    queries, keys, values = random_requests([(length, length)], 16, 1, 72, seed=11)
    whole = run(paged(queries, keys, values, dtype=dtype), 64)
    starts = range(0, length, chunk)
    if chunk == 1:
        starts = range(500, length)  # decode steps; the early ones are as the late ones
    for start in starts:
        stop = min(start + chunk, length)
        part = paged([queries[0][start:stop]], [keys[0][:stop]], [values[0][:stop]], dtype=dtype)
        assert same(run(part, 64), (whole[0][start:stop], whole[1][start:stop])), start


def test_bits_of_a_head_do_not_depend_on_the_others() -> None:
    queries, keys, values = random_requests([(3, 700), (1, 90)], 40, 1, 72, seed=12)
    out, lse = run(paged(queries, keys, values), 64)
    for heads in (slice(0, 1), slice(5, 24), slice(39, 40)):
        some = paged([q[:, heads] for q in queries], keys, values)
        assert same(run(some, 64), (out[:, heads], lse[:, heads])), heads


def test_one_long_decode_on_several_threads() -> None:
    batch = latent([(1, 5000)], 16, 72, 64)
    results = []
    for count in (1, 2, 4):
        with threads(count):
            results.append(run(batch, 64))
    assert all(same(result, results[0]) for result in results[1:])
    check(batch, 64)


def test_offsets_beyond_32_bits() -> None:
    """4e9 elements of cache, of which two blocks are ever touched (the rest is never mapped)."""
    blocks = 4_000_000_000 // (16 * 40)
    cache = torch.empty(blocks, 16, 40, dtype=torch.float16)
    batch = latent([(1, 20)], 16, 40, 32, dtype=torch.float16)
    table = torch.tensor([[blocks - 1, blocks - 2]], dtype=torch.int32)
    cache[table[0]] = batch.key_cache[batch.block_tables[0], :, 0]
    out = ops.mla_attention(
        batch.query, cache, table, batch.cu_seqlens_q, batch.seq_lens, batch.scale, value_dim=32
    )
    assert isinstance(out, Tensor)
    assert torch.equal(out, run(batch, 32)[0])


# ---- errors ----------------------------------------------------------------------------------------------


def int32(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


BAD: list[tuple[str, dict[str, Any]]] = [
    ("query: expected dtype float32, got float16", {"query": torch.zeros(6, 4, 40).half()}),
    (r"query: expected shape \[T, heads, 40\], got \[6, 4, 48\]", {"query": torch.zeros(6, 4, 48)}),
    ("query: expected at least one head, got 0", {"query": torch.zeros(6, 0, 40)}),
    ("kv_cache: expected 3 dimensions", {"kv_cache": torch.zeros(10, 16, 1, 40)}),
    ("kv_cache: expected dtype float32 or float16 or bfloat16, got float8_e4m3fn",
     {"kv_cache": torch.zeros(10, 16, 40).to(torch.float8_e4m3fn)}),
    ("kv_cache: expected a block size of at least 1, got 0", {"kv_cache": torch.zeros(10, 0, 40)}),
    ("kv_cache: expected a contiguous last dim", {"kv_cache": torch.zeros(10, 40, 16).transpose(1, 2)}),
    ("value_dim: expected a multiple of 8 from 8 to kv_cache's last dimension 40, got 48", {"value_dim": 48}),
    ("value_dim: expected a multiple of 8 from 8 to kv_cache's last dimension 40, got 20", {"value_dim": 20}),
    *((f"value_dim: expected 1 to 1024, got {wrong}$", {"value_dim": wrong})
      for wrong in (0, -8, 1032, 2**31, 2**62, 2**70)),
    ("max_query_len: expected a number >= 0 or None, got -1", {"max_query_len": -1}),
    ("scale: expected a finite number, got nan", {"scale": float("nan")}),
    (r"out: expected shape \[T=6, heads=4, 32\], got \[6, 4, 40\]", {"out": torch.zeros(6, 4, 40)}),
    ("out: expected memory of its own", {"out": torch.zeros(1, 4, 32).expand(6, 4, 32)}),
    (r"block_tables: expected block ids from 0 to 9, got 10 at \[1, 5\]",
     {"block_tables": int32([0, 1, 2, 3, 0, 0], [0, 1, 2, 3, 4, 10])}),
    (r"block_tables: expected shape \[batch=2, max_blocks\]", {"block_tables": int32([0, 1])}),
    (r"cu_seqlens_q: expected T=6 .* at \[2\], got 5", {"cu_seqlens_q": int32(0, 4, 5)}),
    ("cu_seqlens_q: expected dtype int32, got int64", {"cu_seqlens_q": torch.tensor([0, 5, 6])}),
    (r"seq_lens: expected lengths from 0 to 96 .*, got 97 at \[1\]", {"seq_lens": int32(60, 97)}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "changes"), BAD, ids=[m for m, _ in BAD])
def test_wrong_arguments(message: str, changes: dict[str, Any]) -> None:
    batch = latent([(5, 60), (1, 90)], 4, 40, 32, spare_blocks=0)
    arguments = {
        "query": batch.query, "kv_cache": batch.key_cache[:, :, 0], "block_tables": batch.block_tables,
        "cu_seqlens_q": batch.cu_seqlens_q, "seq_lens": batch.seq_lens, "scale": 0.1, "value_dim": 32,
    }  # fmt: skip
    with pytest.raises(ValueError, match="^mla_attention: " + message):
        ops.mla_attention(**{**arguments, **changes})


@pytest.mark.parametrize("value", [None, "a", 16.0, True])
def test_value_dim_is_an_int(value: Any) -> None:
    with pytest.raises(TypeError, match=f"^mla_attention: value_dim: expected an int, got {value!r}"):
        run(latent([(1, 5)], 2, 40, 32), value, 0.1)


def test_dimensions_refused() -> None:
    for dim in (4, 12, 1032):
        with pytest.raises(ValueError, match=f"multiple of 8 from 8 to 1024, got {dim}"):
            run(latent([(1, 5)], 2, dim, 4), 8)


def test_out_shares_no_memory_with_inputs() -> None:
    batch = latent([(5, 60)], 4, 40, 32)
    for other in (batch.query, batch.key_cache):
        with pytest.raises(ValueError, match="mla_attention: out: "):
            run(batch, 32, out=other.view(-1)[: 5 * 4 * 32].view(5, 4, 32))


# ---- concat_and_cache_mla --------------------------------------------------------------------------------


@pytest.mark.parametrize("source", FLOATS, ids=str)
@pytest.mark.parametrize("target", FLOATS, ids=str)
@pytest.mark.parametrize("dims", [(512, 64), (13, 3), (8, 0), (0, 8)], ids=str)
def test_store(source: torch.dtype, target: torch.dtype, dims: tuple[int, int]) -> None:
    tokens, (rank, rope) = 37, dims
    fused = torch.randn(tokens, 5 + rank + rope).to(source)
    kv_c, k_pe = fused[:, 5 : 5 + rank], fused[:, 5 + rank :]
    storage = torch.ones(6, 24, rank + rope + 3).to(target)
    slots = torch.randperm(6 * 24)[:tokens]
    slots[1::5] = -1
    expected = storage.clone()
    kept = slots >= 0
    expected[..., 3:][slots[kept] // 24, slots[kept] % 24] = fused[kept, 5:].to(target)
    for count in (1, 2):
        written = storage.clone()
        with threads(count):
            ops.concat_and_cache_mla(kv_c, k_pe, written[..., 3:], slots)
        assert torch.equal(written, expected)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (r"slot_mapping: expected slots from 0 to 63, or -1 to skip, got 64 at \[1\]",
         {"slot_mapping": torch.tensor([0, 64, 1])}),
        (r"slot_mapping: expected slots from 0 to 63, or -1 to skip, got -2 at \[0\]",
         {"slot_mapping": torch.tensor([-2, 0, 1])}),
        ("slot_mapping: expected dtype int64, got int32",
         {"slot_mapping": torch.zeros(3, dtype=torch.int32)}),
        ("k_pe: expected dtype float32 as kv_c, got bfloat16", {"k_pe": torch.ones(3, 8).bfloat16()}),
        (r"k_pe: expected shape \[T=3, P\], got \[2, 8\]", {"k_pe": torch.ones(2, 8)}),
        (r"kv_cache: expected a last dimension of R \+ P = 32 \+ 8, got \[4, 16, 48\]",
         {"kv_cache": torch.zeros(4, 16, 48)}),
        ("kv_cache: expected dtype float32 or float16 or bfloat16, got float8_e4m3fn",
         {"kv_cache": torch.zeros(4, 16, 40).to(torch.float8_e4m3fn)}),
        ("kv_cache: expected memory of its own", {"kv_cache": torch.zeros(1, 16, 40).expand(4, 16, 40)}),
    ],
)  # fmt: skip
def test_store_refuses(message: str, changes: dict[str, Any]) -> None:
    given = {
        "kv_c": torch.ones(3, 32),
        "k_pe": torch.ones(3, 8),
        "kv_cache": torch.zeros(4, 16, 40),
        "slot_mapping": torch.tensor([0, 1, 2]),
        **changes,
    }
    with pytest.raises(ValueError, match="^concat_and_cache_mla: " + message):
        ops.concat_and_cache_mla(**given)
    assert not given["kv_cache"].float().any()


def test_blocks_of_a_latent_cache_move() -> None:
    """One tensor [num_blocks, block_size, 1, R + P] a layer, and no values: copied, swapped, gathered."""
    caches = [torch.randn(9, 16, 1, 40) for _ in range(3)]
    expected = [cache.clone() for cache in caches]
    for cache in expected:
        cache[[5, 6]], cache[2] = cache[[0, 0]], cache[7]
    ops.copy_blocks(caches, [], torch.tensor([[0, 5], [0, 6], [7, 2]]))
    assert all(torch.equal(a, b) for a, b in zip(caches, expected, strict=True))

    other = torch.zeros(4, 16, 1, 40)
    ops.swap_blocks(caches[0], other, torch.tensor([[5, 1], [2, 3]]))
    assert torch.equal(other[[1, 3]], caches[0][[5, 2]])

    ids = torch.tensor([8, -1, 3])
    buffer = ops.gather_blocks(caches, ids)
    assert torch.equal(buffer[:, [0, 2]], torch.stack([cache[[8, 3]] for cache in caches]))
    targets = [torch.zeros(9, 16, 1, 40) for _ in range(3)]
    ops.scatter_blocks(buffer, targets, ids)
    assert all(torch.equal(a[[8, 3]], b[[8, 3]]) for a, b in zip(caches, targets, strict=True))


# ---- torch.ops, and the other instruction sets ------------------------------------------------------------


def test_torch_ops() -> None:
    """opcheck finds mutations that the schemas do not tell of, and fakes that disagree with the kernels."""
    batch = latent([(5, 60), (1, 90)], 4, 40, 32)
    out, lse = torch.empty(6, 4, 32), torch.empty(6, 4)
    arguments = (
        out, lse, batch.query, batch.key_cache[:, :, 0], batch.block_tables, batch.cu_seqlens_q,
        batch.seq_lens, batch.scale, 32,
    )  # fmt: skip
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.inferx.mla_attention.default, arguments, test_utils=checks)
    torch.ops.inferx.mla_attention(*arguments)
    assert same((out, lse), run(batch, 32))
    store = (torch.randn(3, 32), torch.randn(3, 8), torch.zeros(4, 8, 40), torch.tensor([0, -1, 9]))
    torch.library.opcheck(torch.ops.inferx.concat_and_cache_mla.default, store, test_utils=checks)


def test_torch_compile() -> None:
    batch = latent([(5, 60), (1, 90)], 4, 40, 32)
    slots = torch.full((6,), -1)

    def attend(query: Tensor) -> Any:
        cache = batch.key_cache[:, :, 0]
        ops.concat_and_cache_mla(query[:, 0, :32], query[:, 0, 32:], cache, slots)
        return ops.mla_attention(
            query * 2.0, cache, batch.block_tables, batch.cu_seqlens_q, batch.seq_lens, 0.1,
            value_dim=32, return_lse=True,
        )  # fmt: skip

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    assert same(compiled(batch.query), attend(batch.query))


@pytest.mark.parametrize("isa", ["base", "v3"])
def test_other_instruction_sets(isa: str) -> None:
    check_on_instruction_set(isa, ["test_mla.py"], "instruction_sets")
