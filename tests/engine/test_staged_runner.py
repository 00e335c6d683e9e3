"""The runner's way of working on a GPU gives the CPU's answers, bit for bit.

Batches through staging buffers, two steps under way with tokens that never leave the device, decode steps
padded and replayed: on the CPU's own ops, so any difference is a fault of the machinery.
"""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.core_harness import Answer, assert_idle, drive, make_core, request, save_tiny_llama
from tests.engine.device_harness import StagedRunner, staged_core
from tests.engine.test_same_answer import alone, random_requests

from inferx.engine.core import EngineCore
from inferx.engine.device import Device
from inferx.engine.runner import make_runner
from inferx.engine.sampler import SampleResult
from inferx.layers.placement import Placement
from inferx.loader import open_checkpoint
from inferx.models import build_model
from inferx.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("history", [False, True], ids=["overlapping", "penalties"])
@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
def test_random_mixes(tiny: Path, seed: int, history: bool, graphs: bool) -> None:
    rng = random.Random(f"{seed}-{history}")
    requests = random_requests(rng)
    if not history:  # what looks at earlier tokens waits for them, and with it the whole step
        for r in requests:
            params = r.sampling_params
            params.repetition_penalty = 1.0
            params.presence_penalty = params.frequency_penalty = 0.0
    expected = alone(tiny, requests)
    for options in ({}, {"num_blocks": 24, "max_num_batched_tokens": 48}):
        core = staged_core(tiny, graphs=graphs, **options)
        for turn in ("cold", "warm"):
            order = requests[:]
            rng.shuffle(order)
            run = drive(core, sorted(((rng.randint(0, 25), r) for r in order), key=lambda a: a[0]))
            assert run.answers.keys() == expected.keys()
            for key, answer in run.answers.items():
                assert answer == expected[key], f"{options}, {turn}, request {key}"
            assert_idle(core)
        runner = core.runner
        assert isinstance(runner, StagedRunner)
        assert history or runner.seen.sources > 0
        assert runner.seen.copies > 0
        assert (runner.seen.padded > 0) == graphs
        assert (runner.seen.graphs.replays > runner.seen.graphs.captures > 2) == graphs


def greedy(count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


def test_a_graph_outlives_changes_of_batch_and_blocks(tiny: Path) -> None:
    """The same graphs serve batches that shrink, grow, and lie in other blocks."""
    requests = [request(f"r{i}", [i + 1] * (5 + 7 * i), greedy(30 - 3 * i)) for i in range(7)]
    expected = drive(make_core(tiny), [(0, r) for r in requests]).answers
    core = staged_core(tiny, graphs=True)
    for turn in range(3):
        arrivals = [((i * turn) % 11, r) for i, r in enumerate(requests)]
        assert drive(core, sorted(arrivals, key=lambda a: a[0])).answers == expected
    assert core.runner.seen.graphs.captures <= len(core.runner._graphs.policy.buckets)  # type: ignore[attr-defined]


def test_idle_moments_are_used(tiny: Path) -> None:
    core = staged_core(tiny, graphs=True)
    runner = core.runner
    assert isinstance(runner, StagedRunner)
    assert runner._graphs is not None
    runner._graphs.policy._interval = 10**6
    assert not runner.capture_graph(idle=True)  # nothing has been asked for
    drive(core, [(0, request("a", [1, 2, 3], greedy(5)))])
    before = runner.seen.graphs.captures
    drive(core, [(i, request(f"r{i}", [i + 1] * 9, greedy(12))) for i in range(9)])
    assert runner.seen.graphs.captures == before
    while runner.capture_graph(idle=True):
        pass
    assert runner.seen.graphs.captures > before + 1
    expected = drive(make_core(tiny), [(0, request("b", [5, 6], greedy(9)))]).answers
    assert drive(core, [(0, request("b", [5, 6], greedy(9)))]).answers == expected


def test_a_step_that_takes_tokens_from_none_is_refused(tiny: Path) -> None:
    core = staged_core(tiny, graphs=False)
    core.add_request(request("a", [1, 2, 3], greedy(5)))
    plan = core.scheduler.schedule()
    plan.scheduled[0].token_source = 0
    with pytest.raises(RuntimeError, match="sampled none"):
        core.runner.launch(plan, core._state)


def test_a_context_beyond_the_models_tables_is_refused(tiny: Path) -> None:
    """Otherwise tokens there would keep their angle, without a sign of it."""
    checkpoint = open_checkpoint(tiny)
    model = build_model(checkpoint, placement=Placement(torch.device("cpu"), torch.float32, dense=True))
    sizes = {"num_blocks": 9, "block_size": 8, "max_num_seqs": 4, "max_num_batched_tokens": 8}
    options = {"kv_dtype": torch.float32, "tokenizer_vocab_size": None}
    device = Device("simt", torch.device("cpu"))
    with pytest.raises(ValueError, match="max_model_len is 64; the model was prepared for 0 positions"):
        make_runner(model, device, max_model_len=64, **sizes, **options)  # type: ignore[arg-type]
    model.prepare(64)
    make_runner(model, device, max_model_len=64, **sizes, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_model_len is 65"):
        make_runner(model, device, max_model_len=65, **sizes, **options)  # type: ignore[arg-type]
    checkpoint.close()


def fail_the_first_sample(core: EngineCore, fault: BaseException) -> None:
    """The results of the first step that samples raise, once."""
    launch = core.runner.launch
    failed = False

    class Failing:
        def results(self) -> list[SampleResult]:
            raise fault

    def launch_or_fail(plan: Any, state_of: Any) -> Any:
        nonlocal failed
        handle = launch(plan, state_of)
        if failed or not plan.samples:
            return handle
        failed = True
        return Failing()

    core.runner.launch = launch_or_fail  # type: ignore[method-assign]


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), RuntimeError("out of memory")], ids=repr)
@pytest.mark.parametrize("budget", [16, 32], ids=["chunks", "whole"])
def test_prompt_logprobs_of_a_step_that_is_run_again(tiny: Path, fault: BaseException, budget: int) -> None:
    """By then the next step is planned, and the sequence has a token that is not known yet."""
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, prompt_logprobs=0)
    prompt = list(range(5, 26))
    answers = []
    for core in (
        make_core(tiny, max_num_batched_tokens=budget),
        staged_core(tiny, graphs=False, max_num_batched_tokens=budget),
    ):
        fail_the_first_sample(core, fault)
        core.add_request(request("y", prompt, params))
        answer = Answer()
        while core.has_work:
            with contextlib.suppress(KeyboardInterrupt):
                for output in core.step():
                    answer.take(output)
        answers.append((answer.tokens, answer.finish_reason, len(answer.prompt_logprobs or ())))
    assert answers[0] == answers[1]
    assert answers[1][2] == len(prompt)
