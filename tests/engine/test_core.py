"""The step loop: aborts, failures, the latency split, limits."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from tests.engine.core_harness import EOS, Answer, assert_idle, drive, make_core, request, save_tiny_llama

from inferx.engine.core import EngineCore
from inferx.errors import InvalidRequestError
from inferx.sampling_params import SamplingParams

PARTS = (
    "queue_time",
    "prefill_time",
    "decode_time",
    "stall_preempted_time",
    "stall_recompute_time",
    "stall_scheduled_out_time",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"))


def greedy(max_tokens: int, **options: object) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


def test_latency_parts_sum_to_the_whole(tiny: Path) -> None:
    core = make_core(tiny, num_blocks=24, max_num_batched_tokens=32)
    sent = time.monotonic()
    requests = [request(f"r{i}", [i + 1] * (20 + 3 * i), greedy(40)) for i in range(8)]
    run = drive(core, [(0, r) for r in requests])
    passed = time.monotonic() - sent
    assert len(run.metrics) == 8
    assert sum(m.num_preemptions for m in run.metrics) > 0
    for m in run.metrics:
        assert sum(getattr(m, part) for part in PARTS) == pytest.approx(m.e2e_time, abs=1e-9)
        assert 0 < m.time_to_first_token <= m.e2e_time <= passed
        assert (m.stall_preempted_time > 0) == (m.num_preemptions > 0)
        assert (m.stall_recompute_time > 0) == (m.num_recomputed_tokens > 0)
        assert m.num_cached_tokens + m.num_computed_prompt_tokens == m.num_prompt_tokens
        # The first token comes with the prefill.
        assert m.num_decode_steps <= 39
    assert max(m.num_prefill_chunks for m in run.metrics) > 1


def test_abort_at_every_stage_frees_everything(tiny: Path) -> None:
    core = make_core(tiny, num_blocks=64, max_num_batched_tokens=16, max_num_seqs=4)
    for stage in range(0, 30, 3):
        for i in range(6):
            core.add_request(request(f"r{i}", list(range(40 + i)), greedy(50, n=2 if i % 2 else 1)))
        for _ in range(stage):
            core.step()
        for i in (3, 0, 5, 1, 4, 2):
            core.abort(f"r{i}")
            core.scheduler.check_invariants()
        core.abort("unknown")
        assert not core.has_work
        assert_idle(core)


def test_finish_sample_ends_one_of_several(tiny: Path) -> None:
    core = make_core(tiny)
    core.add_request(request("r", [1, 2, 3], SamplingParams(n=3, seed=1, max_tokens=20, ignore_eos=True)))
    for _ in range(4):
        core.step()
    (last,) = core.finish_sample("r", 1)
    assert (last.index, last.finish_reason, last.new_token_ids) == (1, "stop", [])
    assert last.metrics is not None
    assert core.finish_sample("r", 1) == []  # already over
    rest = drive(core, []).answers
    assert {index for _, index in rest} == {0, 2}
    assert_idle(core)


def test_a_failing_request_ends_alone(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward pass raises whenever one particular token is in it."""
    core = make_core(tiny, max_num_batched_tokens=24)
    expected = drive(
        make_core(tiny), [(0, request(f"r{i}", [i + 1] * 30, greedy(8))) for i in (0, 2)]
    ).answers
    forward = core.model.forward

    def broken(input_ids: torch.Tensor, *rest: object) -> torch.Tensor:
        if (input_ids == 99).any():
            raise RuntimeError("boom")
        return forward(input_ids, *rest)

    monkeypatch.setattr(core.model, "forward", broken)
    core.model.records_steps = False  # so that each step calls it
    long_prompt = [5] * 40 + [99] * 3 + [5] * 40  # fails in a chunk that yields no token
    requests = [
        request("r0", [1] * 30, greedy(8)),
        request("bad", [7, 99], greedy(8)),
        request("worse", long_prompt, greedy(8, n=2)),
        request("r2", [3] * 30, greedy(8)),
    ]
    answers = drive(core, [(0, r) for r in requests]).answers
    assert answers["r0", 0] == expected["r0", 0]
    assert answers["r2", 0] == expected["r2", 0]
    for key in (("bad", 0), ("worse", 0), ("worse", 1)):
        assert answers[key].finish_reason == "error"
        assert "boom" in answers[key].error
        assert answers[key].tokens == []
    assert_idle(core)


def test_failing_block_copies_end_those_in_the_step(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its copies a step would read foreign blocks: an error, never a wrong answer."""
    core = make_core(tiny)
    expected = drive(make_core(tiny), [(0, request("again", [1] * 21, greedy(8, n=2)))]).answers
    copy = core.runner.copy_blocks

    def broken(copies: list[tuple[int, int]]) -> None:
        if copies:
            raise RuntimeError("no copy")

    monkeypatch.setattr(core.runner, "copy_blocks", broken)
    answers = drive(core, [(0, request("forks", [1] * 21, greedy(8, n=2)))]).answers
    assert {a.finish_reason for a in answers.values()} == {"error"}
    assert all("no copy" in a.error for a in answers.values())
    assert_idle(core)
    monkeypatch.setattr(core.runner, "copy_blocks", copy)
    assert drive(core, [(0, request("again", [1] * 21, greedy(8, n=2)))]).answers == expected


@pytest.mark.parametrize("call", range(1, 9))
def test_an_interrupt_loses_nothing(tiny: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Ctrl-C in the middle of a step: the step is planned anew, and answers are the same."""
    requests = [request(f"r{i}", [i + 1] * (9 + 6 * i), greedy(6, n=1 + i % 2)) for i in range(4)]
    expected = drive(make_core(tiny, max_num_batched_tokens=24), [(0, r) for r in requests]).answers
    core = make_core(tiny, max_num_batched_tokens=24)
    forward, calls = core.model.forward, 0

    def interrupted(*args: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        hidden = forward(*args)
        if calls == call:
            raise KeyboardInterrupt
        return hidden

    monkeypatch.setattr(core.model, "forward", interrupted)
    core.model.records_steps = False  # so that each step calls it
    for r in requests:
        core.add_request(r)
    answers = {key: Answer() for key in expected}
    interrupts = 0
    while core.has_work:
        try:
            for output in core.step():
                answers[output.request_id, output.index].take(output)
        except KeyboardInterrupt:
            interrupts += 1
        core.scheduler.check_invariants()
    assert interrupts == 1
    assert answers == expected
    assert_idle(core)


def test_nan_logits_end_the_request_with_an_error(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = make_core(tiny)
    compute = core.model.compute_logits

    def with_nan(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute(hidden).clone()
        logits[0, 3] = torch.nan
        return logits

    monkeypatch.setattr(core.model, "compute_logits", with_nan)
    core.model.records_steps = False  # so that each step calls it
    answers = drive(
        core, [(0, request("a", [1, 2], greedy(5))), (0, request("b", [3, 4], greedy(5)))]
    ).answers
    assert answers["a", 0].finish_reason == "error"
    assert "non-finite" in answers["a", 0].error
    # Once "a" is gone, "b" is the first row, and fails too: no answer of junk tokens with success.
    assert answers["b", 0].finish_reason == "error"
    assert_idle(core)


def test_limits(tiny: Path) -> None:
    """Case B01: larger than the pool is refused at once; a growing one ends at the pool's size."""
    core = make_core(tiny, num_blocks=8, max_model_len=256)
    # What is announced is what can be had.
    assert core.info.max_model_len == 64
    with pytest.raises(InvalidRequestError, match=r"64 .*got a prompt of 75 tokens"):
        core.add_request(request("large", [1] * 75, greedy(5)))
    growing = [(0, request("growing", [1] * 20, greedy(200)))]
    short = [(0, request(f"s{i}", [i + 2] * 8, greedy(6))) for i in range(10)]
    answers = drive(core, growing + short).answers
    assert answers["growing", 0].finish_reason == "length"
    assert len(answers["growing", 0].tokens) == 64 - 20
    for i in range(10):
        assert len(answers[f"s{i}", 0].tokens) == 6
    assert_idle(core)


@pytest.mark.parametrize("bias_to", [EOS, 200])
def test_end_tokens(tiny: Path, bias_to: int) -> None:
    """Every declared end token stops; ignore_eos ignores all of them, but not stop_token_ids (case D10)."""
    core = make_core(tiny)

    def run(**options: object) -> tuple[int, str | None]:
        params = SamplingParams(
            temperature=0, max_tokens=5, logit_bias={bias_to: 100.0}, eos_token_ids=[200, EOS], **options
        )
        answer = drive(core, [(0, request("r", [1, 2, 3], params))]).answers["r", 0]
        return len(answer.tokens), answer.finish_reason

    assert run() == (1, "stop")
    assert run(ignore_eos=True) == (5, "length")
    assert run(ignore_eos=True, stop_token_ids=[bias_to]) == (1, "stop")
    assert run(ignore_eos=True, stop_token_ids=[bias_to], min_tokens=3)[0] >= 3


def test_prompt_logprobs_are_the_same_cached_or_not(tiny: Path) -> None:
    """Case B03: cached blocks hold no logits, so they are computed, not read stale."""
    core = make_core(tiny, block_size=16)
    prompts = {n: [(7 * i) % 250 for i in range(n)] for n in (33, 49)}
    seen = {}
    for name, n in (("a", 33), ("plain", 49), ("b", 49), ("c", 33)):
        wanted = None if name == "plain" else 1
        r = request(name, prompts[n], greedy(1, prompt_logprobs=wanted))
        seen[name] = drive(core, [(0, r)]).answers[name, 0].prompt_logprobs
    assert seen["plain"] is None
    assert len(seen["a"]) == 33
    assert len(seen["b"]) == 49
    assert seen["a"][0] is None
    assert seen["a"] == seen["c"] == seen["b"][:33]


def test_salts_do_not_share(tiny: Path) -> None:
    core: EngineCore = make_core(tiny)
    cached = []
    for i, salt in enumerate([None, "a", "a", None, "b"]):
        r = request(f"r{i}", list(range(100)), greedy(2), salt=salt)
        cached.append(drive(core, [(0, r)]).metrics[0].num_cached_tokens)
    assert cached == [0, 0, 96, 96, 0]  # twelve full blocks of 8


@pytest.mark.parametrize("budget", [64, 1024])
def test_a_prefix_that_arrives_16_times_is_computed_once(tiny: Path, budget: int) -> None:
    """Together and with a cold cache, in one step and over several: 448 tokens in common, 32 of their own."""
    core = make_core(tiny, num_blocks=256, max_num_batched_tokens=budget, max_num_seqs=16)
    common = [i * 7 % 200 + 3 for i in range(448)]
    requests = [request(f"r{i}", [*common, *[i + 3] * 32], greedy(4)) for i in range(16)]
    run = drive(core, [(0, r) for r in requests])
    assert len(run.metrics) == 16
    assert sum(m.num_computed_prompt_tokens for m in run.metrics) == 448 + 16 * 32
    # Nobody waits for more than the first one: its chunks, then all the others' own tokens and decodes.
    chunks = -(-480 // budget) + -(-15 * 32 // (budget - 16))
    assert core.stats().num_steps <= chunks + 4
