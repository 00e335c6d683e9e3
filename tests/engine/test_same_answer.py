"""Same request, same answer, bit for bit: alone = batched = chunked = cached = preempted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.core_harness import (
    Answer,
    assert_idle,
    drive,
    make_core,
    request,
    save_tiny_llama,
    save_tiny_moe,
)
from tests.models_fixtures import smollm2_path

from inferx.engine.core import EngineCore
from inferx.engine.protocol import EngineRequest
from inferx.engine.runner import ModelRunner
from inferx.sampling_params import SamplingParams

NUM_REQUESTS = 14


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


def random_params(rng: random.Random) -> SamplingParams:
    greedy = rng.random() < 0.5
    return SamplingParams(
        n=rng.choice([1, 1, 1, 3]),
        temperature=0.0 if greedy else rng.choice([0.7, 1.3]),
        top_k=0 if greedy else rng.choice([0, 5]),
        top_p=1.0 if greedy else rng.choice([1.0, 0.9]),
        min_p=0.0 if greedy else rng.choice([0.0, 0.05]),
        repetition_penalty=rng.choice([1.0, 1.2]),
        presence_penalty=rng.choice([0.0, 0.5]),
        frequency_penalty=rng.choice([0.0, 0.3]),
        logit_bias=rng.choice([None, {7: 2.0}]),
        seed=rng.randrange(1 << 30),
        max_tokens=rng.randint(1, 40),
        min_tokens=rng.choice([0, 0, 1]),
        ignore_eos=rng.random() < 0.5,
        eos_token_ids=[257],
        logprobs=rng.choice([None, 0, 4]),
        prompt_logprobs=rng.choice([None, None, None, 2]),
    )


def random_requests(rng: random.Random) -> list[EngineRequest]:
    """Prompts of 1 to 120 tokens, many of which start with the same text."""
    stems = [[rng.randrange(256) for _ in range(length)] for length in (0, 13, 40, 80)]
    requests = []
    for i in range(NUM_REQUESTS):
        prompt = rng.choice(stems) + [rng.randrange(256) for _ in range(rng.randint(1, 40))]
        salt = rng.choice([None, None, "a"])
        requests.append(request(f"r{i}", prompt, random_params(rng), priority=rng.randint(0, 2), salt=salt))
    return requests


def alone(path: Path, requests: list[EngineRequest], **options: Any) -> dict[tuple[str, int], Answer]:
    """Each request by itself: one chunk, no cache, no company."""
    core = make_core(path, enable_prefix_caching=False, max_num_batched_tokens=512, **options)
    answers: dict[tuple[str, int], Answer] = {}
    for r in requests:
        answers |= drive(core, [(0, r)]).answers
    return answers


@pytest.mark.parametrize("case", range(6))
def test_random_mixes(tiny: Path, seed: int, case: int) -> None:
    check_random_mix(tiny, random.Random(f"{seed}-{case}"))


@pytest.mark.parametrize("case", range(2))
@pytest.mark.parametrize("family", ["mixtral", "deepseek"])
def test_random_mixes_of_experts(tmp_path: Path, seed: int, family: str, case: int) -> None:
    """Who else is in the batch decides how many tokens an expert sees; latents are copied and shared."""
    check_random_mix(save_tiny_moe(tmp_path, family=family), random.Random(f"{seed}-{case}"))


@pytest.mark.parametrize("activations", ["auto", "float32"])
def test_random_mixes_of_quantised_weights(seed: int, activations: str) -> None:
    """SmolLM2: int8 activations beside a float16 cache, which is the default, and float32."""
    path = smollm2_path()
    core = make_core(path, activations=activations)
    int8, dtype = core.model.placement.int8, core.runner.kv[0][0].dtype  # type: ignore[attr-defined]
    assert (int8, dtype) == ((True, torch.float16) if activations == "auto" else (False, torch.float32))
    check_random_mix(path, random.Random(seed), activations=activations)


def check_random_mix(tiny: Path, rng: random.Random, **options: Any) -> None:
    requests = random_requests(rng)
    expected = alone(tiny, requests, **options)
    cores: dict[str, EngineCore] = {
        "batched": make_core(tiny, **options),
        "chunks of 16": make_core(tiny, max_num_batched_tokens=16, **options),
        "chunks of 37, blocks of 16": make_core(
            tiny, max_num_batched_tokens=37, block_size=16, num_blocks=99, **options
        ),
        "tiny pool": make_core(tiny, num_blocks=24, max_num_batched_tokens=48, **options),
    }
    seen = {"preemptions": 0, "hits": 0, "copies": 0}
    for core in cores.values():
        count_copies(core, seen)
    for name, core in cores.items():
        for turn in ("cold", "warm"):  # the second time, whole prompts are in the cache
            order = requests[:]
            rng.shuffle(order)
            arrivals = sorted(((rng.randint(0, 25), r) for r in order), key=lambda a: a[0])
            run = drive(core, arrivals)
            assert run.answers.keys() == expected.keys()
            for key, answer in run.answers.items():
                assert answer == expected[key], f"{name}, {turn}, request {key}"
            assert_idle(core)
        seen["preemptions"] += core.stats().num_preemptions
        seen["hits"] += core.stats().prefix_cache_hits
    # Otherwise the test would show nothing about these.
    assert seen["preemptions"] > 0
    assert seen["hits"] > 0
    assert seen["copies"] > 0


def count_copies(core: EngineCore, seen: dict[str, int]) -> None:
    runner = core.runner
    assert isinstance(runner, ModelRunner)
    copy = runner.copy_blocks

    def counted(copies: Sequence[tuple[int, int]]) -> None:
        seen["copies"] += len(copies)
        copy(copies)

    runner.copy_blocks = counted  # type: ignore[method-assign]


def test_threads_do_not_matter(tiny: Path, seed: int) -> None:
    rng = random.Random(seed)
    requests = random_requests(rng)
    one = drive(make_core(tiny, num_threads=1), [(0, r) for r in requests]).answers
    two = drive(make_core(tiny, num_threads=2), [(0, r) for r in requests]).answers
    assert one == two
