"""The same request, the same answer, bit for bit: also as background work, displaced, and beside it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.engine.core_harness import assert_idle, drive, make_core, request, save_tiny_llama

from inferx.engine.protocol import BACKGROUND_PRIORITY
from inferx.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


def test_answers_are_those_alone(tiny: Path) -> None:
    rng = random.Random(0)
    jobs = []
    for i in range(20):
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.9]),
            seed=i,
            max_tokens=rng.randint(1, 40),
            ignore_eos=True,
            logprobs=rng.choice([None, 3]),
            n=rng.choice([1, 1, 2]),
        )
        jobs.append(([rng.randrange(256) for _ in range(rng.randint(1, 100))], params))
    alone = make_core(tiny, enable_prefix_caching=False)
    wanted = {}
    for i, (prompt, params) in enumerate(jobs):
        wanted |= drive(alone, [(0, request(f"r{i}", prompt, params))]).answers
    core = make_core(
        tiny,
        num_blocks=24,
        max_num_seqs=3,
        max_num_batched_tokens=48,
        max_model_len=160,
        background_tokens=2,
        background_chunk=16,
    )
    arrivals = [
        (3 * i, request(f"r{i}", prompt, params, priority=BACKGROUND_PRIORITY if i % 3 else 0))
        for i, (prompt, params) in enumerate(jobs)
    ]
    run = drive(core, arrivals)
    assert run.answers == wanted
    assert sum(metrics.num_preemptions for metrics in run.metrics) > 3
    assert_idle(core)
