"""The sampler: distribution, order, independence of rows, broken rows, log-probabilities."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from inferx.engine.sampler import Sampler, SampleResult, SampleRow, compute_prompt_logprobs
from inferx.engine.sampling_arrays import upload, upload_together
from inferx.errors import RequestFailedError
from inferx.sampling_params import SamplingParams


@pytest.fixture(autouse=True)
def restore_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def row(seed: int = 0, output: tuple[int, ...] = (), index: int = 0, **options: Any) -> SampleRow:
    return SampleRow(SamplingParams(**options), [1, 2, 3], list(output), seed, len(output), index)


def random_logits(seed: int, rows: int, vocab: int) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def sample_one(logits: list[float] | torch.Tensor, **options: Any) -> SampleResult:
    x = torch.as_tensor(logits)[None]
    return Sampler(x.shape[1]).sample(x, [row(**options)])[0]


# ---- greedy and its limits


def test_greedy_takes_the_lowest_of_equal_maxima() -> None:
    x = [0.0, 5.0, 1.0, 5.0, 5.0]
    assert sample_one(x, temperature=0.0).token_id == 1
    assert sample_one(x, temperature=0.0, logit_bias={0: 0.5}).token_id == 1
    assert {sample_one(x, temperature=1.0, top_k=1, seed=s).token_id for s in range(20)} == {1}


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e-12},
        {"temperature": 1e-6},
        {"temperature": 1e-4},
        {"top_p": 1e-9},
        {"top_p": 1e-4},
        {"top_k": 1},
        {"min_p": 1.0},
        {"temperature": 100.0, "top_k": 1},
        {"temperature": 100.0, "top_p": 1e-9},
    ],
    ids=str,
)
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
def test_limits_are_greedy(options: dict[str, Any], scale: float) -> None:
    x = random_logits(0, 16, 1003) * scale
    # Clear of a near tie, which 1e-4 rightly still decides by chance.
    x[range(16), x.argmax(-1)] += scale
    rows = [row(seed, **options) for seed in range(15)] + [row(15, temperature=1.5)]
    got = [r.token_id for r in Sampler(1003).sample(x, rows)]
    assert got[:15] == x.argmax(-1).tolist()[:15]
    assert got[15] is not None


def test_top_p_of_one_changes_nothing() -> None:
    x = random_logits(1, 30, 500)
    sampler = Sampler(500)
    plain = sampler.sample(x, [row(s) for s in range(30)])
    full = sampler.sample(x, [row(s, top_p=1.0, top_k=500, min_p=0.0) for s in range(30)])
    assert [r.token_id for r in plain] == [r.token_id for r in full]


# ---- distribution


def reference_probabilities(x: list[float], p: SamplingParams) -> list[float]:
    """temperature, min_p, top_k, top_p in double precision, token by token."""
    best = max(x)
    weights = [math.exp((v - best) / p.temperature) for v in x]
    weights = [w if w >= p.min_p * max(weights) else 0.0 for w in weights]
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    for i in order[p.top_k if p.top_k > 0 else len(x) :]:
        weights[i] = 0.0
    total, before = sum(weights), 0.0
    for i in order:
        w = weights[i]
        if before >= p.top_p * total:
            weights[i] = 0.0
        before += w
    total = sum(weights)
    return [w / total for w in weights]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"top_k": 4},
        {"top_k": 300, "top_p": 0.9},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"temperature": 1.5, "top_k": 9, "top_p": 0.8, "min_p": 0.02},
    ],
    ids=str,
)
def test_samples_follow_the_distribution(options: dict[str, Any]) -> None:
    vocab, draws = 30, 4000
    x = random_logits(7, 1, vocab)[0] / 2
    expected = reference_probabilities(x.tolist(), SamplingParams(**options))
    results = Sampler(vocab).sample(x.expand(draws, -1), [row(seed, **options) for seed in range(draws)])
    counts = Counter(r.token_id for r in results)
    assert set(counts) <= {t for t, p in enumerate(expected) if p > 0}
    # Chi-square over the tokens expected at least five times; seeds are fixed, so this never flickers.
    likely = [t for t, p in enumerate(expected) if p * draws >= 5]
    statistic = sum((counts[t] - draws * expected[t]) ** 2 / (draws * expected[t]) for t in likely)
    freedom = max(1, len(likely) - 1)
    assert statistic < freedom + 4 * math.sqrt(2 * freedom), (statistic, freedom)


def test_steps_and_samples_are_independent_draws() -> None:
    """Neither the token number nor the sample index (n > 1) may shift another stream's draws."""
    x = torch.zeros(2000, 8)
    sampler = Sampler(8)
    by_step = [r.token_id for r in sampler.sample(x, [row(5, (0,) * (i % 50), i // 50) for i in range(2000)])]
    counts = Counter(by_step)
    assert sum((c - 250) ** 2 / 250 for c in counts.values()) < 7 + 4 * math.sqrt(14)
    pairs = Counter(itertools.pairwise(by_step))
    assert sum((pairs[a, b] - 1999 / 64) ** 2 / (1999 / 64) for a in range(8) for b in range(8)) < 63 + 45


def test_seed_gives_the_same_token_again() -> None:
    x = random_logits(3, 1, 1000)
    sampler = Sampler(1000)
    tokens = [sampler.sample(x, [row(42, (7,) * 5, 1)])[0].token_id for _ in range(3)]
    assert len(set(tokens)) == 1
    others = {sampler.sample(x, [row(s, (7,) * 5, 1)])[0].token_id for s in range(50)}
    assert len(others) > 10


def test_first_draws_are_pinned() -> None:
    """A seed's answer is a promise to users; whoever changes this breaks it."""
    x = torch.linspace(0, 3, 64).repeat(6, 1)
    results = Sampler(64).sample(x, [row(seed, (0,) * step) for seed in (0, 1, 2**40) for step in (0, 1)])
    assert [r.token_id for r in results] == PINNED


PINNED = [61, 44, 61, 61, 53, 63]


# ---- same request, same answer


def mixed_rows(rng: random.Random, count: int, vocab: int) -> list[SampleRow]:
    rows = []
    for i in range(count):
        options: dict[str, Any] = {"temperature": rng.choice([0.0, 0.0, 0.7, 1.0, 1.4])}
        choices: dict[str, Any] = {
            "top_k": rng.choice([1, 5, 40, 3000]),
            "top_p": rng.choice([1e-9, 0.5, 0.9, 0.99]),
            "min_p": 0.05,
            "repetition_penalty": 1.2,
            "frequency_penalty": 0.5,
            "logit_bias": {rng.randrange(vocab): 4.0},
            "allowed_token_ids": rng.sample(range(vocab), 50),
            "bad_words_token_ids": [[rng.randrange(vocab)], [4, rng.randrange(vocab)]],
            "min_tokens": 5,
            "logprobs": rng.choice([0, 1, 5, 20]),
        }
        options.update({k: v for k, v in choices.items() if rng.random() < 0.3})
        prompt = rng.choices(range(vocab), k=10)
        output = rng.choices(range(vocab), k=rng.randrange(6))
        params = SamplingParams(**options, eos_token_ids=[3], max_tokens=None)
        rows.append(SampleRow(params, prompt, output, rng.getrandbits(63), len(output), i % 3))
    return rows


@pytest.mark.parametrize(("vocab", "known", "count"), [(1003, 1000, 40), (49152, 49152, 16)])
def test_a_row_does_not_depend_on_the_batch(vocab: int, known: int, count: int) -> None:
    """Bit for bit: alone, in batches of several sizes and orders, on one to three threads."""
    rng = random.Random(vocab)
    x = random_logits(vocab, count, vocab)
    x[1] = (x[1] * 2).round() / 2  # many ties
    x[2, 5] = math.inf
    x[3, 7] = math.nan
    x[4] = -math.inf
    rows = mixed_rows(rng, count, known)
    for r in range(3, 6):
        rows[r].params.logprobs = 5
    sampler = Sampler(vocab, known)
    torch.set_num_threads(1)
    alone = [sampler.sample(x[r : r + 1].clone(), [rows[r]])[0] for r in range(count)]
    assert sum(a.error is not None for a in alone) == 2
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for size in (1, 3, count):
            order = rng.sample(range(count), count)
            for start in range(0, count, size):
                part = order[start : start + size]
                for r, got in zip(part, sampler.sample(x[part], [rows[r] for r in part]), strict=True):
                    assert got == alone[r], (threads, size, r)


def test_kept_and_fresh_rows_agree() -> None:
    """What hangs on a SampleRow between steps is a cache only."""
    vocab = 200
    sampler = Sampler(vocab)
    options: dict[str, Any] = {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "bad_words_token_ids": [[9], [8, 7]],
        "min_tokens": 10,
        "stop_token_ids": [5],
    }
    kept = SampleRow(SamplingParams(**options, max_tokens=None), [1, 2], [], 9, 0)
    for step in range(25):
        x = random_logits(step, 1, vocab)
        kept.step = step
        token = sampler.sample(x, [kept])[0].token_id
        fresh = SampleRow(kept.params, [1, 2], list(kept.output_token_ids), 9, step)
        assert sampler.sample(x, [fresh])[0].token_id == token
        assert isinstance(kept.output_token_ids, list)
        kept.output_token_ids.append(token)


def test_logits_are_read_only() -> None:
    x = random_logits(0, 12, 1000)
    before = x.clone()
    Sampler(1000).sample(x, mixed_rows(random.Random(1), 12, 1000))
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_float_types(dtype: torch.dtype) -> None:
    x = random_logits(4, 6, 300).to(dtype)
    rows = [row(s, temperature=t, logprobs=2) for s, t in enumerate([0.0, 1.0] * 3)]
    assert Sampler(300).sample(x, rows) == Sampler(300).sample(x.float(), rows)


# ---- options in the sampler


def test_penalty_equals_the_same_bias() -> None:
    """presence and frequency penalties of the output so far are what a logit_bias of that size does."""
    x = random_logits(8, 20, 100)
    sampler = Sampler(100)
    output = (4, 9, 9, 4, 9)
    pairs = [
        ({"presence_penalty": 2.0}, {"logit_bias": {4: -2.0, 9: -2.0}}),
        ({"frequency_penalty": 0.5}, {"logit_bias": {4: -1.0, 9: -1.5}}),
        ({"frequency_penalty": -0.5}, {"logit_bias": {4: 1.0, 9: 1.5}}),
    ]
    for penalty, bias in pairs:
        for temperature in (0.0, 1.0):
            a = sampler.sample(x, [row(s, output, temperature=temperature, **penalty) for s in range(20)])
            b = sampler.sample(x, [row(s, output, temperature=temperature, **bias) for s in range(20)])
            assert a == b


def test_bias_of_a_hundred() -> None:
    x = random_logits(9, 8, 1000)
    up = Sampler(1000).sample(x, [row(s, logit_bias={77: 100.0}) for s in range(8)])
    assert {r.token_id for r in up} == {77}
    best = x.argmax(-1).tolist()
    down = Sampler(1000).sample(x, [row(0, temperature=0.0, logit_bias={b: -100.0}) for b in best])
    assert [r.token_id for r in down] == x.topk(2).indices[:, 1].tolist()


def test_min_tokens_keeps_the_end_away() -> None:
    x = torch.zeros(1, 10)
    x[0, 3], x[0, 4], x[0, 6] = 9.0, 8.0, 1.0
    for temperature, options in ((0.0, {}), (0.001, {}), (0.001, {"top_k": 1})):
        base = {
            "min_tokens": 2,
            "eos_token_ids": [3],
            "stop_token_ids": [4],
            "temperature": temperature,
            **options,
        }
        for step, token in ((0, 6), (1, 6), (2, 3)):
            assert Sampler(10).sample(x, [row(0, (6,) * step, **base)])[0].token_id == token


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_of_the_vocabulary_is_never_sampled(temperature: float) -> None:
    x = random_logits(2, 40, 130)
    x[:, 100:] += 50.0
    rows = [row(s, temperature=temperature, logprobs=5, allowed_token_ids=None) for s in range(40)]
    for r, result in enumerate(Sampler(130, 100).sample(x, rows)):
        assert result.token_id is not None
        assert result.token_id < 100
        assert result.logprobs is not None
        assert max(result.logprobs.token_ids) < 100
        expected = torch.log_softmax(x[r].double(), -1)[result.logprobs.token_ids]
        assert result.logprobs.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
    only_padding = torch.full((1, 130), -math.inf)
    only_padding[0, 120] = 1.0
    assert Sampler(130, 100).sample(only_padding, [row(temperature=temperature)])[0].error is not None


# ---- broken rows


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_rows_fail_alone(temperature: float) -> None:
    vocab = 320
    x = random_logits(6, 8, vocab)
    x[0] = 0.0
    x[0, 123] = 1e9  # as good as one-hot
    x[1] = math.nan
    x[2] = -math.inf
    x[3, 77] = math.inf
    x[4, [55, 200]] = math.inf
    x[5, 31] = math.nan
    rows = [row(s, temperature=temperature, top_k=2**30, top_p=1.0, logprobs=2) for s in range(8)]
    sampler = Sampler(vocab)
    results = sampler.sample(x, rows)
    assert [r.token_id for r in results[:6]] == [123, None, None, 77, 55, None]
    for r in (1, 2, 5):
        assert "non-finite logits" in (results[r].error or "")
        assert results[r].logprobs is None
    for r in (0, 3, 4, 6, 7):
        assert results[r].error is None
        assert results[r] == sampler.sample(x[r : r + 1], [rows[r]])[0]
    for r in (3, 4):
        entry = results[r].logprobs
        assert entry is not None
        assert entry.logprobs[0] == 0.0
        assert not any(math.isnan(v) for v in entry.logprobs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_legal_token_is_an_error_of_that_row(temperature: float) -> None:
    x = random_logits(6, 5, 50)
    rows = [
        row(0, temperature=temperature),
        row(1, temperature=temperature, allowed_token_ids=[7], bad_words_token_ids=[[7]]),
        row(2, temperature=temperature, allowed_token_ids=[7, 8], min_tokens=3, stop_token_ids=[7, 8]),
        row(3, temperature=temperature, bad_words_token_ids=[[t] for t in range(50)]),
        row(4, temperature=temperature, allowed_token_ids=[7]),
    ]
    results = Sampler(50).sample(x, rows)
    assert [r.error is None for r in results] == [True, False, False, False, True]
    assert [r.token_id for r in results[1:4]] == [None] * 3
    assert results[4].token_id == 7
    assert results[0] == Sampler(50).sample(x[:1], rows[:1])[0]


def test_nan_of_another_temperature_does_not_spread() -> None:
    x = random_logits(6, 3, 50)
    x[1, 0] = math.nan
    rows = [row(s, temperature=0.8, top_k=5) for s in range(3)]
    results = Sampler(50).sample(x, rows)
    assert results[1].error is not None
    assert results[2] == Sampler(50).sample(x[2:], rows[2:])[0]


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2, 10\].*got \[2, 11\]"):
        Sampler(10).sample(torch.zeros(2, 11), [row(), row()])
    with pytest.raises(ValueError, match=r"\[1, 10\]"):
        Sampler(10).sample(torch.zeros(2, 10), [row()])
    with pytest.raises(ValueError, match="vocab_size"):
        Sampler(1 << 21)
    assert Sampler(10).sample(torch.zeros(0, 10), []) == []


# ---- log-probabilities


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_logprobs_are_of_the_raw_distribution(temperature: float) -> None:
    x = random_logits(12, 10, 700)
    options = {
        "temperature": temperature,
        "logit_bias": {5: 9.0, 6: 9.0},
        "top_k": 30,
        "repetition_penalty": 1.5,
    }
    counts = [0, 1, 2, 5, 20, 0, 1, 2, 5, 20]
    results = Sampler(700).sample(x, [row(s, (5,), logprobs=k, **options) for s, k in enumerate(counts)])
    exact = torch.log_softmax(x.double(), -1)
    for r, (result, k) in enumerate(zip(results, counts, strict=True)):
        entry = result.logprobs
        assert entry is not None
        top = exact[r].topk(k).indices.tolist()
        assert entry.token_ids == [result.token_id, *top]
        assert entry.logprobs == pytest.approx(exact[r, entry.token_ids].tolist(), abs=1e-6)
        assert entry.rank == 1 + int((x[r] > x[r, result.token_id]).sum())


def test_logprobs_only_where_asked_for() -> None:
    x = random_logits(12, 3, 100)
    results = Sampler(100).sample(x, [row(), row(logprobs=0), row()])
    assert [r.logprobs is None for r in results] == [True, False, True]


def test_prompt_logprobs() -> None:
    x = random_logits(13, 60, 49152)
    following = random.Random(0).choices(range(49152), k=60)
    entries = compute_prompt_logprobs(x, following, 4)
    exact = torch.log_softmax(x.double(), -1)
    for r, entry in enumerate(entries):
        assert entry.token_ids == [following[r], *x[r].topk(4).indices.tolist()]
        assert entry.logprobs == pytest.approx(exact[r, entry.token_ids].tolist(), abs=1e-6)
        assert entry.rank == 1 + int((x[r] > x[r, following[r]]).sum())
    assert Sampler(49152).prompt_logprobs(x[7:9], following[7:9], 4) == entries[7:9]
    assert compute_prompt_logprobs(x[:0], [], 4) == []


def test_prompt_logprobs_refuse_what_is_wrong() -> None:
    x = random_logits(13, 3, 50)
    with pytest.raises(ValueError, match=r"next_token_ids.*got 50"):
        compute_prompt_logprobs(x, [1, 2, 50], 1)
    with pytest.raises(ValueError, match=r"\[2, V\]"):
        compute_prompt_logprobs(x, [1, 2], 1)
    x[1, 3] = math.nan
    with pytest.raises(RequestFailedError, match="non-finite"):
        compute_prompt_logprobs(x, [1, 2, 3], 1)


def test_the_widest_vocabulary_of_the_real_models() -> None:
    vocab = 262144
    x = random_logits(14, 3, vocab)
    rows = [row(0, temperature=0.0, logprobs=3), row(1, top_p=0.9), row(2, top_k=50, top_p=0.9)]
    results = Sampler(vocab).sample(x, rows)
    assert results[0].token_id == int(x[0].argmax())
    assert x[2, results[2].token_id] >= x[2].topk(50).values[-1]


# ---- launching


def test_launch_reads_the_rows_and_gives_the_ids_at_once() -> None:
    """What happens to the rows, or to the logits' next users, after launch does not matter."""
    x = random_logits(15, 12, 1000)
    rows = mixed_rows(random.Random(3), 12, 1000)
    x[5] = math.nan
    expected = Sampler(1000).sample(x, mixed_rows(random.Random(3), 12, 1000))
    pending = Sampler(1000).launch(x, rows)
    assert pending.token_ids.dtype == torch.int64
    for row_ in rows:
        row_.output_token_ids.append(1)  # type: ignore[attr-defined]
        row_.step += 1
    x.fill_(0.0)
    ids = pending.token_ids.tolist()
    results = pending.results()
    assert results == expected
    assert pending.results() is results
    assert results[5].error is not None
    assert [r.token_id for r in results if r.error is None] == ids[:5] + ids[6:]
    assert all(0 <= token < 1000 for token in ids)


def test_arrays_travel_together() -> None:
    """Views of one copy, whatever the sizes and types; empty ones too."""
    arrays = [
        np.arange(n, dtype=dtype)
        for n in (0, 1, 3, 17)
        for dtype in (np.int32, np.int64, np.float32, np.float64)
    ]
    together = upload_together(arrays, torch.device("cpu"), pinned=False)
    assert len({t.untyped_storage().data_ptr() for t in together}) == 1
    for sent, got, alone in zip(arrays, together, upload(arrays, torch.device("cpu")), strict=True):
        assert got.dtype == alone.dtype
        assert got.tolist() == alone.tolist() == sent.tolist()
