"""The row-wise operations against exact (integer, fraction) and float64 references."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inferx.engine import sampling_ops as ops


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def random_logits(seed: int, rows: int, vocab: int, step: float | None = None) -> torch.Tensor:
    """Normal logits; with ``step`` rounded to its multiples, which makes many equal."""
    x = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 4
    return x if step is None else (x / step).round() * step


def in_order(z: list[float]) -> list[int]:
    return sorted(range(len(z)), key=lambda i: (-z[i], i))


# ---- argmax, top k


@pytest.mark.parametrize("vocab", [1, 2, 7, 255, 1003])
def test_first_argmax_takes_the_lowest_of_equals(vocab: int) -> None:
    x = random_logits(vocab, 9, vocab, step=4.0)
    expected = [row.index(max(row)) for row in x.tolist()]
    assert ops.first_argmax(x).tolist() == expected
    padded = torch.cat([x, torch.full((9, 5), 100.0)], 1)
    assert ops.first_argmax(padded[:, :vocab]).tolist() == expected


def test_first_argmax_finds_nan() -> None:
    x = random_logits(0, 3, 100)
    x[1, 40] = math.nan
    assert ops.first_argmax(x)[1] == 40


@pytest.mark.parametrize(
    ("vocab", "k"), [(1, 1), (5, 5), (5, 9), (100, 0), (1003, 1), (1003, 20), (49152, 20)]
)
@pytest.mark.parametrize("step", [None, 0.5, 100.0])
def test_exact_topk(vocab: int, k: int, step: float | None) -> None:
    x = random_logits(vocab + k, 5, vocab, step)
    x[0, : vocab // 2] = -math.inf
    values, ids = ops.exact_topk(x, k)
    for row, got_values, got_ids in zip(x.tolist(), values, ids, strict=True):
        expected = in_order(row)[:k]
        assert got_ids == expected
        assert got_values == [row[i] for i in expected]


@pytest.mark.parametrize("vocab", [10, 50, 5000])
def test_exact_topk_with_one_tie_at_its_end(vocab: int) -> None:
    """The only equal values are the last that fits and the first that does not: the lower id fits."""
    for trial in range(20):
        order = torch.randperm(vocab, generator=torch.Generator().manual_seed(trial))
        x = order.float()[None]
        x[x == vocab - 4] = vocab - 3
        values, ids = ops.exact_topk(x, 3)
        assert ids[0] == in_order(x[0].tolist())[:3]
        assert values == [[vocab - 1, vocab - 2, vocab - 3]]


# ---- weights


@pytest.mark.parametrize("vocab", [1, 3, 511, 512, 513, 2000])
@pytest.mark.parametrize("temperature", [1e-4, 0.7, 1.0, 3.0, 100.0])
def test_weights_are_the_softmax(vocab: int, temperature: float) -> None:
    x = random_logits(vocab, 4, vocab)
    z = ops.scaled_logits(x, torch.full((4,), temperature))
    weights = ops.fixed_point_weights(z)
    assert weights.shape[1] % 512 == 0
    assert weights.shape[1] - vocab < 512
    assert not weights[:, vocab:].any()
    exact = x.double() - x.double().amax(-1, keepdim=True)
    expected = torch.softmax(exact / temperature, -1)
    got = weights[:, :vocab].double() / weights.sum(-1, keepdim=True).double()
    # Rounding of z to f32 is relative, so the tolerance grows with |z| where the weight shrinks.
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=1e-11)


def test_extreme_logits_do_not_overflow() -> None:
    x = torch.tensor([[3e38, -3e38, 0.0], [-3e38, -math.inf, -3.1e38], [1e-40, 0.0, -1e-40]])
    weights = ops.fixed_point_weights(ops.scaled_logits(x, torch.tensor([1e-5, 1e-5, 1e-5])))[:, :3]
    one = 2**42
    assert weights.tolist() == [[one, 0, 0], [one, 0, 0], [one, one, one]]


# ---- draw


def reference_draw(weights: list[int], bits: int) -> int:
    target = bits * sum(weights) >> 64
    for i, w in enumerate(weights):
        if target < w:
            return i
        target -= w
    raise AssertionError


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_draw_is_the_inverse_cdf(data: st.DataObject, blocks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 2**42, (6, blocks * 512)) * (rng.random((6, blocks * 512)) < 0.1)
    weights[:, rng.integers(blocks * 512)] += 1
    bits = [data.draw(st.integers(0, 2**64 - 1)) for _ in range(4)] + [0, 2**64 - 1]
    got = ops.draw(torch.from_numpy(weights), bits)
    assert got == [reference_draw(w, b) for w, b in zip(weights.tolist(), bits, strict=True)]
    assert all(weights[r, token] > 0 for r, token in enumerate(got))


def test_draw_at_every_boundary() -> None:
    """Three tokens of 1/4, 1/4, 1/2 across two blocks: each boundary belongs to the token behind it."""
    weights = torch.zeros(1, 1024, dtype=torch.int64)
    weights[0, 3], weights[0, 511], weights[0, 600] = 1, 1, 2
    quarter = 2**62
    cases = {0: 3, quarter - 1: 3, quarter: 511, 2 * quarter - 1: 511, 2 * quarter: 600, 4 * quarter - 1: 600}
    for bits, token in cases.items():
        assert ops.draw(weights, [bits]) == [token]


def test_draw_with_the_largest_sums() -> None:
    weights = torch.full((1, ops.MAX_VOCAB), 2**42, dtype=torch.int64)
    assert ops.draw(weights, [2**64 - 1]) == [ops.MAX_VOCAB - 1]
    assert ops.draw(weights, [2**63]) == [ops.MAX_VOCAB // 2]


# ---- filters


def reference_filter(z: list[float], weights: list[int], k: int, p: float) -> list[int]:
    """Exactly what the docstring of filter_top_k_top_p says, token by token."""
    out = list(weights)
    order = in_order(z)
    if k > 0:
        for i in order[k:]:
            out[i] = 0
    total, before = sum(out), 0
    for rank, i in enumerate(order):
        if rank and not before < Fraction(p) * total:
            out[i] = 0
        else:
            before += out[i]
    return out


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 17, 512, 700]),
    st.sampled_from([None, 0.25, 2.0, 1000.0]),
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2, 5, 40, 699, 2**31 - 1]),
            st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999999]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([0.05, 0.8, 1.0, 5.0]),
)
def test_top_k_and_top_p(
    seed: int, vocab: int, step: float | None, options: list[tuple[int, float]], temperature: float
) -> None:
    x = random_logits(seed, len(options), vocab, step)
    z = ops.scaled_logits(x, torch.full((len(options),), temperature))
    original = ops.fixed_point_weights(z)
    top_k, top_p = [k for k, _ in options], [p for _, p in options]
    for ks, ps in ((top_k, top_p), (top_k, None), (None, top_p)):
        weights = original.clone()
        ops.filter_top_k_top_p(z, weights, ks, ps)
        for r in range(len(options)):
            expected = reference_filter(
                z[r].tolist(), original[r].tolist(), ks[r] if ks else 0, ps[r] if ps else 1.0
            )
            assert weights[r].tolist() == expected


def test_filters_on_a_real_width() -> None:
    x = random_logits(5, 3, 49152)
    z = ops.scaled_logits(x)
    original = ops.fixed_point_weights(z)
    weights = original.clone()
    ops.filter_top_k_top_p(z, weights, [0, 5000, 50], [0.9, 0.95, 1.0])
    for r, (k, p) in enumerate([(0, 0.9), (5000, 0.95), (50, 1.0)]):
        assert weights[r].tolist() == reference_filter(z[r].tolist(), original[r].tolist(), k, p)


def test_min_p() -> None:
    z = ops.scaled_logits(torch.log(torch.tensor([[1.0, 0.5, 0.25, 0.1249, 0.0]] * 3)))
    weights = ops.fixed_point_weights(z)
    ops.filter_min_p(weights, [0.0, 0.125, 1.0])
    assert (weights[:, :5] > 0).tolist() == [
        [True, True, True, True, False],
        [True, True, True, False, False],
        [True, False, False, False, False],
    ]


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 40, 257, 3000]),
    st.sampled_from([None, 0.25, 2.0, 1000.0]),
    st.lists(
        st.tuples(
            st.integers(1, ops.FEW),
            st.sampled_from([1e-9, 0.1, 0.9, 1.0]),
            st.sampled_from([0.0, 0.01, 0.5, 1.0]),
            st.sampled_from([1e-4, 0.7, 1.0, 20.0]),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_few_candidates_come_to_the_same(
    seed: int, vocab: int, step: float | None, options: list[tuple[int, float, float, float]]
) -> None:
    """The short cut for a small top_k draws what the filters over the whole row would leave to draw."""
    x = random_logits(seed, len(options), vocab, step)
    x[:, : vocab // 3] = -math.inf
    x[:, -1] = 0.0
    bits = np.random.default_rng(seed).integers(0, 2**64, len(options), dtype=np.uint64).tolist()
    top_k, top_p, min_p, ts = ([o[i] for o in options] for i in range(4))
    temperature = torch.tensor(ts)
    z = ops.scaled_logits(x, temperature)
    weights = ops.fixed_point_weights(z)
    ops.filter_min_p(weights, min_p)
    ops.filter_top_k_top_p(z, weights, top_k, top_p)
    assert ops.draw_among_few(x, temperature, min_p, top_k, top_p, bits) == ops.draw(weights, bits)


# ---- normaliser


@pytest.mark.parametrize("vocab", [1, 100, 513, 49152])
def test_log_normalizer(vocab: int) -> None:
    x = random_logits(vocab, 3, vocab) + torch.tensor([[-1000.0], [0.0], [50.0]])
    x[0, : vocab // 2] = -math.inf
    expected = torch.logsumexp(x.double(), -1)
    torch.testing.assert_close(torch.tensor(ops.log_normalizer(x)).double(), expected, rtol=1e-7, atol=1e-6)


def test_log_normalizer_with_infinity() -> None:
    assert ops.log_normalizer(torch.tensor([[1.0, math.inf], [0.0, 0.0]])) == [
        math.inf,
        pytest.approx(math.log(2)),
    ]


# ---- same bits whatever the batch and the threads


@pytest.mark.parametrize("vocab", [1003, 49152])
def test_rows_do_not_depend_on_each_other_or_on_threads(vocab: int) -> None:
    rows = 24
    x = random_logits(11, rows, vocab)
    temperature = torch.linspace(0.1, 2.0, rows)

    def work(start: int, stop: int) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
        z = ops.scaled_logits(x[start:stop], temperature[start:stop])
        weights = ops.fixed_point_weights(z)
        ops.filter_top_k_top_p(z, weights, [50] * (stop - start), [0.9] * (stop - start))
        return list(zip(z, weights, ops.log_normalizer(x[start:stop]), strict=True))

    torch.set_num_threads(1)
    alone = [work(r, r + 1)[0] for r in range(rows)]
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for size in (1, 2, 5, 24):
            got = [entry for start in range(0, rows, size) for entry in work(start, min(rows, start + size))]
            for (z0, w0, n0), (z1, w1, n1) in zip(alone, got, strict=True):
                assert torch.equal(z0, z1)
                assert torch.equal(w0, w1)
                assert n0 == n1


def test_row_groups_cover_everything_once() -> None:
    for vocab in (1, 1000, 1 << 19, 1 << 20):
        groups = list(ops.row_groups(range(37), vocab))
        assert [r for g in groups for r in g] == list(range(37))
        assert all(g and (len(g) == 1 or len(g) * vocab <= 1 << 19) for g in groups)
