"""Penalties, biases and masks against a float64 reference, and the state kept between steps."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from inferx.engine.logits_processors import LogitsProcessors
from inferx.sampling_params import SamplingParams

VOCAB = 40


def reference(
    logits: list[float], p: SamplingParams, prompt: list[int], output: list[int], step: int
) -> list[float]:
    """The documented order, one token at a time, in double precision."""
    x = list(logits)
    for t in range(len(x)):
        if p.allowed_token_ids is not None and t not in p.allowed_token_ids:
            x[t] = -math.inf
        for sequence in p.bad_words_token_ids or []:
            prefix = sequence[:-1]
            if t == sequence[-1] and (not prefix or output[-len(prefix) :] == prefix):
                x[t] = -math.inf
        if step < p.min_tokens and t in [*p.eos_token_ids, *p.stop_token_ids]:
            x[t] = -math.inf
        x[t] += (p.logit_bias or {}).get(t, 0.0)
        if t in prompt or t in output:
            x[t] = x[t] / p.repetition_penalty if x[t] > 0 else x[t] * p.repetition_penalty
        x[t] -= p.frequency_penalty * output.count(t)
        x[t] -= p.presence_penalty * (t in output)
    return x


def apply(processors: LogitsProcessors, logits: list[float], output: list[int], step: int) -> list[float]:
    row = torch.tensor(logits)
    processors.apply(row, output, step)
    return row.tolist()


def assert_same(got: list[float], expected: list[float]) -> None:
    assert got == pytest.approx(expected, rel=1e-5, abs=1e-5)


def random_params(rng: random.Random) -> SamplingParams:
    def some(count: int) -> list[int]:
        return rng.sample(range(VOCAB), count)

    options: dict[str, Any] = {
        "allowed_token_ids": some(30),
        "bad_words_token_ids": [rng.choices(range(VOCAB), k=rng.randint(1, 3)) for _ in range(20)],
        "min_tokens": rng.choice([0, 3, 100]),
        "logit_bias": {t: rng.uniform(-100, 100) for t in some(8)},
        "repetition_penalty": rng.choice([0.5, 1.3]),
        "presence_penalty": rng.uniform(-2, 2),
        "frequency_penalty": rng.uniform(-2, 2),
    }
    chosen = {name: value for name, value in options.items() if rng.random() < 0.6}
    return SamplingParams(**chosen, max_tokens=None, stop_token_ids=some(3), eos_token_ids=some(2))


@pytest.mark.parametrize("seed", range(30))
def test_all_options_together_step_by_step(seed: int) -> None:
    """One object over a growing output, and a fresh one at each step, both equal the reference."""
    rng = random.Random(seed)
    params = random_params(rng)
    prompt = rng.choices(range(VOCAB // 2), k=rng.randint(1, 20))
    kept = LogitsProcessors(params, prompt, VOCAB)
    output: list[int] = []
    for step in range(12):
        logits = [rng.gauss(0, 5) for _ in range(VOCAB)]
        expected = reference(logits, params, prompt, output, step)
        assert_same(apply(kept, logits, output, step), expected)
        assert_same(apply(LogitsProcessors(params, prompt, VOCAB), logits, output, step), expected)
        assert kept.active(step) or expected == pytest.approx(logits)
        output.append(rng.randrange(VOCAB))


@pytest.mark.parametrize("repetition_penalty", [1.0, 1.2])
def test_counts_of_a_long_output(repetition_penalty: float) -> None:
    """The store of counts grows past its first size several times."""
    rng = random.Random(3)
    vocab = 3000
    params = SamplingParams(
        repetition_penalty=repetition_penalty, presence_penalty=0.7, frequency_penalty=-0.3, max_tokens=None
    )
    prompt = rng.choices(range(vocab), k=100)
    processors = LogitsProcessors(params, prompt, vocab)
    output: list[int] = []
    for count in (1, 2, 63, 64, 65, 500, 2000):
        while len(output) < count:
            output.append(rng.randrange(vocab))
        logits = [rng.gauss(0, 5) for _ in range(vocab)]
        assert_same(
            apply(processors, logits, output, count), reference(logits, params, prompt, output, count)
        )


def test_a_shorter_output_starts_the_counts_again() -> None:
    params = SamplingParams(frequency_penalty=1.0)
    processors = LogitsProcessors(params, [1], VOCAB)
    apply(processors, [0.0] * VOCAB, [5, 5, 6], 3)
    assert_same(apply(processors, [0.0] * VOCAB, [5], 1), reference([0.0] * VOCAB, params, [1], [5], 1))


def test_presence_and_frequency_ignore_the_prompt() -> None:
    params = SamplingParams(presence_penalty=2.0, frequency_penalty=2.0)
    processors = LogitsProcessors(params, [3, 3, 3], VOCAB)
    assert apply(processors, [1.0] * VOCAB, [], 0) == [1.0] * VOCAB


def test_repetition_penalty_counts_the_prompt() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    got = apply(LogitsProcessors(params, [0, 1], 4), [4.0, -4.0, 4.0, -4.0], [2], 1)
    assert got == [2.0, -8.0, 2.0, -4.0]


def test_bad_words_of_several_tokens() -> None:
    params = SamplingParams(bad_words_token_ids=[[1, 2, 3], [2, 4], [9]])

    def banned(output: list[int]) -> set[int]:
        row = apply(LogitsProcessors(params, [1, 2], VOCAB), [0.0] * VOCAB, output, len(output))
        return {t for t, x in enumerate(row) if x == -math.inf}

    assert banned([]) == {9}  # the prompt's end does not count
    assert banned([2]) == {9, 4}
    assert banned([1, 2]) == {9, 3, 4}
    assert banned([1, 2, 5]) == {9}
    assert banned([1]) == {9}


def test_ids_outside_the_vocabulary_do_no_harm() -> None:
    far = [-1, VOCAB, 10**6, 2**31 - 1]
    params = SamplingParams(
        allowed_token_ids=[1, 2, *far],
        logit_bias=dict.fromkeys(far, 5.0),
        stop_token_ids=far,
        eos_token_ids=far,
        min_tokens=4,
        bad_words_token_ids=[[-1], [5, VOCAB], [VOCAB, 1]],
        repetition_penalty=1.5,
        frequency_penalty=1.0,
    )
    got = apply(LogitsProcessors(params, far, VOCAB), [1.0] * VOCAB, [VOCAB, -1, 2], 3)
    assert got[1] == 1.0
    assert got[2] == pytest.approx(1.0 / 1.5 - 1.0)
    assert all(x == -math.inf for t, x in enumerate(got) if t not in (1, 2))


def test_min_tokens_ends() -> None:
    params = SamplingParams(min_tokens=2, stop_token_ids=[3], eos_token_ids=[4], ignore_eos=True)
    processors = LogitsProcessors(params, [0], VOCAB)
    assert processors.active(1)
    assert not processors.active(2)
    masked = apply(processors, [0.0] * VOCAB, [1], 1)
    assert {t for t, x in enumerate(masked) if x == -math.inf} == {3, 4}
    assert apply(processors, [0.0] * VOCAB, [1, 1], 2) == [0.0] * VOCAB


def test_nothing_asked_for_is_not_active() -> None:
    params = SamplingParams(temperature=0.3, top_k=5, stop_token_ids=[1], eos_token_ids=[2], logprobs=3)
    assert not LogitsProcessors(params, [1, 2], VOCAB).active(0)


@pytest.mark.parametrize("repetition_penalty", [1e-300, 1e-30, 100.0])
def test_extreme_repetition_penalties_give_no_nan(repetition_penalty: float) -> None:
    logits = [-math.inf, -3e38, -1.0, 0.0, 1.0, 3e38, math.inf]
    params = SamplingParams(repetition_penalty=repetition_penalty)
    got = apply(LogitsProcessors(params, list(range(7)), 7), logits, [], 0)
    assert not any(math.isnan(x) for x in got)
    assert got[0] == -math.inf
    assert got[3] == 0.0
