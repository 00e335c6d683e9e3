"""Scheduler: requests come, end, fail and leave; what a step says.

Policy and preemption have their own files; long random mixes are in test_scheduler_properties.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from simulator import Simulation, params, prompt, simulation, solo, tokens_of

from inferx.engine.block_pool import BlockAccountingError
from inferx.engine.config import SchedulerConfig
from inferx.engine.protocol import BACKGROUND_PRIORITY, EngineRequest
from inferx.engine.request import Phase, Sequence, Status
from inferx.engine.scheduler import QueueFullError, SampleError, Scheduler
from inferx.errors import InvalidRequestError
from inferx.sampling_params import SamplingParams

# What is refused


@pytest.mark.parametrize(
    ("limits", "length", "numbers"),
    [
        ({"max_model_len": 100}, 100, ("100", "max_model_len")),
        ({"num_blocks": 4}, 64, ("64", "4 blocks of 16")),
        ({"num_blocks": 16, "max_model_len": 1024}, 300, ("256", "got a prompt of 300 tokens")),  # case B01
    ],
)
def test_a_prompt_that_can_never_fit_is_refused_naming_both_numbers(
    limits: dict[str, int], length: int, numbers: tuple[str, ...]
) -> None:
    sim = simulation(**limits)
    with pytest.raises(InvalidRequestError) as e:
        sim.add("a", prompt(length))
    assert e.value.param == "prompt"
    assert f"prompt of {length} tokens" in str(e.value)
    for number in numbers:
        assert number in str(e.value)
    assert not sim.scheduler.has_unfinished()


@pytest.mark.parametrize("limits", [{"max_model_len": 100}, {"num_blocks": 4}])
def test_the_longest_prompt_gets_its_one_token(limits: dict[str, int]) -> None:
    sim = simulation(**limits)
    length = sim.config.max_seq_len - 1
    job = sim.add("a", prompt(length), params(None))
    sim.run()
    assert job.sequences[0].num_output_tokens == 1
    assert job.sequences[0].finish_reason == "length"


def test_other_refusals() -> None:
    sim = simulation(max_waiting=2)
    with pytest.raises(InvalidRequestError, match=r"max_num_seqs \(8\), got 9"):
        sim.add("a", prompt(3), params(n=9))
    with pytest.raises(InvalidRequestError, match="at least one token"):
        sim.add("a", [])
    for bad in (2**31, -(2**31) - 1, 1.5, "x"):
        with pytest.raises(InvalidRequestError, match="int32"):
            sim.add("a", [1, bad])  # type: ignore[list-item]
    sim.add("a", prompt(3))
    with pytest.raises(InvalidRequestError, match="'a', which is in use"):
        sim.add("a", prompt(3))
    sim.run()


def test_the_queue_is_bounded_beside_what_may_run() -> None:
    sim = simulation(max_waiting=2, max_num_seqs=3)
    for i in range(5):  # three have places in the next step
        sim.add(f"early {i}", prompt(3))
    with pytest.raises(QueueFullError, match="2 requests wait already"):
        sim.add("late", prompt(3))
    sim.step()
    with pytest.raises(QueueFullError, match="max_waiting=2"):
        sim.add("late", prompt(3))
    for i in range(4):
        sim.add(f"background {i}", prompt(3), priority=BACKGROUND_PRIORITY)
    sim.abort("early 4")
    sim.add("late", prompt(3))  # whatever there is of background work
    sim.run()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_blocks": 0}, "num_blocks must be an integer of at least 1, got 0"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": True}, "block_size"),
        ({"max_model_len": 1}, "max_model_len must be an integer of at least 2, got 1"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_batched_tokens": 7}, r"at least max_num_seqs \(8\).*got 7"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"policy": "sjf"}, "policy must be .*got 'sjf'"),
        ({"num_blocks": 1, "block_size": 1}, "at least 2 tokens, got 1"),
    ],
)
def test_wrong_limits_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulation(**wrong)


# Ending


def test_a_request_that_outgrows_the_pool_ends_there_and_holds_up_nobody() -> None:
    """Case B01: 256 tokens of KV; one prompt of 100 that wants 500 more; ten short ones."""
    sim = simulation(num_blocks=16, max_model_len=1024)
    big = sim.add("big", prompt(100), params(500))
    small = [sim.add(f"s{i}", prompt(8, i + 1), params(4)) for i in range(10)]
    sim.run(max_steps=300)
    assert big.sequences[0].num_tokens == 256
    assert big.sequences[0].finish_reason == "length"
    assert all(job.sequences[0].finish_reason == "length" for job in small)
    assert all(job.sequences[0].num_output_tokens == 4 for job in small)


def answers(sim: Simulation, request_id: str, script: list[int | SampleError], **more: Any) -> Sequence:
    """Run one request whose sampled tokens are given."""
    request = EngineRequest(request_id, prompt(5), SamplingParams(**more), 0.0)
    seq = sim.scheduler.add_request(request).sequences[0]
    for result in script:
        assert seq.finish_reason is None, f"ended early, before {result}"
        out = sim.scheduler.schedule()
        sim.scheduler.update(out, [result])
    return seq


@pytest.mark.parametrize(
    ("script", "options", "reason", "stop_reason"),
    [
        ([9, 9, 7], {"eos_token_ids": [7]}, "stop", None),
        ([9, 9, 7], {"eos_token_ids": [6, 7]}, "stop", None),
        ([9, 7, 8], {"eos_token_ids": [7], "ignore_eos": True, "max_tokens": 3}, "length", None),
        ([9, 8], {"stop_token_ids": [8]}, "stop", 8),
        ([9, 7], {"eos_token_ids": [7], "ignore_eos": True, "stop_token_ids": [7]}, "stop", 7),
        ([9, 7], {"eos_token_ids": [7], "stop_token_ids": [7]}, "stop", None),
        (
            [7, 8, 9],
            {"eos_token_ids": [7], "stop_token_ids": [8], "min_tokens": 3, "max_tokens": 3},
            "length",
            None,
        ),
        ([7, 7], {"eos_token_ids": [7], "min_tokens": 2}, "stop", None),
        ([9, 9, 7], {"eos_token_ids": [7], "max_tokens": 3}, "stop", None),
        ([9], {"max_tokens": 1}, "length", None),
        ([9] * 7, {"max_tokens": None}, "length", None),
        ([9, SampleError("logits are not finite")], {}, "error", None),
    ],
)
def test_when_a_sequence_ends(
    script: list[int | SampleError], options: dict[str, Any], reason: str, stop_reason: int | None
) -> None:
    sim = simulation(max_model_len=12)
    seq = answers(sim, "a", script, **{"max_tokens": 7, **options})
    assert (seq.finish_reason, seq.stop_reason) == (reason, stop_reason)
    assert seq.output_token_ids == [t for t in script if isinstance(t, int)]
    assert (seq.error == "logits are not finite") == (reason == "error")
    assert not sim.scheduler.has_unfinished()
    sim.check_idle()


def test_an_error_ends_that_sample_only() -> None:
    sim = simulation()
    bad = sim.add("bad", prompt(20), params(5, n=3))
    good = sim.add("good", prompt(10, 1), params(5))
    out = sim.plan()
    results = sim.forward(out)
    assert out.samples == [*bad.sequences, *good.sequences]
    results[0] = SampleError("broken")  # the leader, whose blocks the others share
    bad.cut[0] = "error"
    sim.finish_step(out, results)
    sim.run()
    assert bad.sequences[0].error == "broken"
    assert bad.sequences[0].output_token_ids == []
    assert [len(s.output_token_ids) for s in (*bad.sequences[1:], *good.sequences)] == [5, 5, 5]


@pytest.mark.parametrize("sampled", [True, False])
def test_nobody_finds_the_blocks_of_a_request_that_failed(sampled: bool) -> None:
    sim = simulation()
    job = sim.add("bad", prompt(60 if sampled else 100), params(5))
    out = sim.plan()
    sim.forward(out)
    sim.finish_step(out, [SampleError("logits are not finite")] if sampled else [])
    if not sampled:
        assert sim.scheduler.finish("bad", 0, "error", "the forward pass failed") is job.sequences[0]
    job.cut[0] = "error"
    sim.scheduler.check_invariants()
    assert sim.scheduler.stats().num_cached_blocks == 0
    again = sim.add("again", prompt(60), params(5))
    sim.run()
    assert again.sequences[0].num_cached_tokens == 0


# Samples and forks


def test_all_samples_come_from_one_prompt_and_share_its_blocks() -> None:
    sim = simulation()
    job = sim.add("a", prompt(70), params(6, n=4))
    first = sim.step()
    assert [len(e.samples) for e in first.scheduled] == [0]
    out = sim.step()
    assert out.samples == job.sequences
    assert sim.scheduler.kv.pool.num_referenced == 5
    assert sim.scheduler.stats().num_running == 4
    out = sim.step()
    assert [e.seq for e in out.scheduled] == job.sequences
    assert len(out.block_copies) == 3
    assert sim.scheduler.kv.pool.num_referenced == 8
    sim.run()
    assert len({tuple(s.output_token_ids) for s in job.sequences}) > 1
    assert all(s.num_prefill_chunks == 2 and s.num_computed_prompt_tokens == 70 for s in job.sequences)
    assert sim.scheduler.stats().prompt_tokens == 70
    assert sim.scheduler.stats().generation_tokens == 24


def test_slots_for_all_samples_are_reserved_at_admission() -> None:
    sim = simulation(max_num_seqs=4)
    sim.add("a", prompt(100), params(3, n=3))
    sim.add("b", prompt(3, 1), params(3, n=2))
    sim.add("c", prompt(3, 2), params(3))
    out = sim.step()
    assert [s.request_id for s in out.admitted] == ["a"]
    assert sim.scheduler.stats().num_running == 3
    sim.run()


def test_a_finished_sample_frees_its_slot() -> None:
    sim = simulation(max_num_seqs=4)
    sim.add("a", prompt(3), params(30, n=3))
    sim.step()
    sim.add("b", prompt(3, 1), params(3, n=2))
    sim.step()
    assert len(sim.scheduler.waiting) == 1
    sim.finish("a", 1)
    assert [s.request_id for s in sim.step().admitted] == ["b"]
    sim.run()


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("when", ["waiting", "planned", "running"])
def test_a_sample_may_end_before_the_fork(index: int, when: str) -> None:
    sim = simulation()
    job = sim.add("a", prompt(100), params(6, n=3))
    if when == "waiting":
        sim.finish("a", index)
    sim.step()
    if when == "running":
        sim.finish("a", index)
    out = sim.plan()
    results = sim.forward(out)
    if when == "planned":
        sim.finish("a", index)
    sim.finish_step(out, results)
    sim.run()
    assert [s.num_output_tokens for s in job.sequences] == [0 if i == index else 6 for i in range(3)]


def test_ending_every_sample_ends_the_request() -> None:
    sim = simulation()
    sim.add("a", prompt(100), params(6, n=3))
    sim.step()
    for i in (1, 0, 2):
        assert sim.scheduler.has_unfinished()
        sim.finish("a", i)
    sim.check_idle()
    sim.check_answers()
    assert sim.scheduler.finish("a", 0, "stop") is None
    assert sim.scheduler.finish("b", 0, "stop") is None
    assert not sim.scheduler.has_unfinished()


def test_finish_ignores_indices_that_do_not_exist() -> None:
    sim = simulation()
    sim.add("a", prompt(10), params(6, n=2))
    assert sim.scheduler.finish("a", 2, "stop") is None
    assert sim.scheduler.finish("a", -1, "stop") is None
    sim.run()


# Abort


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("moment", ["queued", "prefill", "planned", "computed", "decoding", "preempted"])
def test_abort_gives_everything_back_at_once(n: int, moment: str) -> None:
    """Case A17: in the queue, in a long prefill, in the middle of a step, while decoding, when preempted."""
    sim = simulation(num_blocks=12 if moment == "preempted" else 64)
    job = sim.add("a", prompt(100), params(None, n=n), priority=1)
    out = None
    if moment == "preempted":
        sim.add("other", prompt(40, 1), params(140))
        while not any(s.status is Status.PREEMPTED for s in job.sequences):
            sim.step()
    elif moment != "queued":
        for _ in range(20 if moment == "decoding" else 1):
            sim.step()
        if moment in ("planned", "computed"):
            out = sim.plan()
            results = sim.forward(out)
    sim.abort("a")
    assert "a" not in sim.scheduler.requests
    assert all(s.status is Status.FINISHED and s.finish_reason == "abort" for s in job.sequences)
    if out is not None:
        sim.finish_step(out, results)
    assert sum(s.request_id == "a" for s in (*sim.scheduler.running, *sim.scheduler.waiting)) == 0
    if moment != "preempted":
        sim.check_idle()
    assert sim.scheduler.abort("a") == []
    sim.add("a", prompt(100), params(3))  # the name is free again
    sim.run()


def test_a_name_used_again_in_the_same_step_gets_no_foreign_tokens() -> None:
    sim = simulation()
    sim.add("a", prompt(10), params(3))
    out = sim.plan()
    results = sim.forward(out)
    sim.abort("a")
    job = sim.add("a", prompt(20, 1), params(3))
    sim.finish_step(out, results)
    assert job.sequences[0].num_output_tokens == 0
    sim.run()


# What a step says, and misuse


def test_phases_and_counters() -> None:
    sim = simulation()
    seq = sim.add("a", prompt(100), params(3)).sequences[0]
    waiting = sim.add("b", prompt(200, 1), params(1), priority=1).sequences[0]
    phases = []
    out = sim.plan()
    assert out.admitted == [seq]
    assert sim.scheduler.waiting == [waiting]
    sim.finish_step(out, sim.forward(out))
    phases.append(out.scheduled[0].phase)
    while not seq.finished:
        out = sim.step()
        phases += [e.phase for e in out.scheduled if e.seq is seq]
    assert phases == [Phase.PREFILL] * 2 + [Phase.DECODE] * 2
    assert (seq.num_prefill_chunks, seq.num_decode_steps, seq.num_computed_prompt_tokens) == (2, 2, 100)
    sim.run()


def test_running_requests_without_budget_are_named() -> None:
    sim = simulation()
    sim.add("a", prompt(60), params(1))
    b = sim.add("b", prompt(60, 1), params(1)).sequences[0]
    sim.add("urgent", prompt(200, 2), params(1), priority=-1)
    assert tokens_of(sim.step()) == {"urgent": 64}
    sim2 = simulation(max_num_batched_tokens=8, max_num_seqs=8)
    first = sim2.add("first", prompt(5), params(1))
    sim2.add("second", prompt(50, 1), params(1), priority=1)
    assert tokens_of(sim2.step()) == {"first": 5, "second": 3}
    sim2.add("urgent", prompt(20, 2), params(1))
    out = sim2.step()
    assert tokens_of(out) == {"urgent": 8}
    assert [s.request_id for s in out.scheduled_out] == ["second"]
    assert first.sequences[0].finished
    sim.run()
    sim2.run()
    assert b.finished


def test_an_empty_scheduler_plans_an_empty_step() -> None:
    scheduler = Scheduler(SchedulerConfig(num_blocks=4, max_model_len=32))
    out = scheduler.schedule()
    assert (out.scheduled, out.total_num_tokens, out.samples) == ([], 0, [])
    assert scheduler.update(out, []) == []


def test_steps_are_planned_and_finished_in_turn() -> None:
    sim = simulation()
    sim.add("a", prompt(10), params(5))
    out = sim.scheduler.schedule()
    behind = sim.scheduler.schedule()
    with pytest.raises(RuntimeError, match="2 steps have not been handed to update"):
        sim.scheduler.schedule()
    with pytest.raises(RuntimeError, match="not the oldest one in flight"):
        sim.scheduler.update(behind, [5])
    with pytest.raises(ValueError, match=r"one entry per sample \(1\), got 0"):
        sim.scheduler.update(out, [])
    sim.scheduler.update(out, [5])
    with pytest.raises(RuntimeError, match="not the oldest one in flight"):
        sim.scheduler.update(out, [5])
    with pytest.raises(ValueError, match=r"must have a token or an error for .*'a'"):
        sim.scheduler.update(behind, [None])


def test_the_table_of_a_step_survives_an_abort() -> None:
    sim = simulation()
    sim.add("a", prompt(40), params(5))
    out = sim.plan()
    table = list(out.scheduled[0].block_table)
    assert len(table) == 3
    sim.abort("a")
    assert list(out.scheduled[0].block_table) == table
    sim.finish_step(out, sim.forward(out))
    sim.check_idle()


def test_statistics() -> None:
    sim = simulation(num_blocks=10)
    sim.add("a", prompt(40), params(4))
    stats = sim.scheduler.stats()
    assert (stats.num_waiting, stats.num_running, stats.num_free_blocks, stats.num_blocks) == (1, 0, 10, 10)
    sim.step()
    earlier, stats = stats, sim.scheduler.stats()
    assert (stats.num_waiting, stats.num_running, stats.num_free_blocks) == (0, 1, 7)
    assert stats.kv_cache_usage == pytest.approx(0.3)
    assert (earlier.num_waiting, earlier.num_free_blocks) == (1, 10)  # a snapshot stays as it was
    sim.run()
    stats = sim.scheduler.stats()
    assert (stats.num_cached_blocks, stats.prompt_tokens, stats.generation_tokens) == (2, 40, 4)
    assert stats.num_steps == 4


def test_the_invariant_check_notices() -> None:
    sim = simulation()
    job = sim.add("a", prompt(40), params(4))
    sim.step()
    sim.scheduler.requests.clear()
    with pytest.raises(BlockAccountingError, match="belongs to no request"):
        sim.scheduler.check_invariants()
    sim.scheduler.requests["a"] = job.sequences[0].request
    sim.scheduler.running.clear()
    with pytest.raises(BlockAccountingError, match="lost"):
        sim.scheduler.check_invariants()


def test_many_that_wait_for_one_prefix_cost_no_look_ups() -> None:
    """Scheduling must stay cheap: one look-up per admission attempt, not one per waiting request and step."""
    sim = simulation(num_blocks=1024, max_num_seqs=64, max_num_batched_tokens=64)
    calls = []
    match = sim.scheduler.kv.cache.match
    sim.scheduler.kv.cache.match = lambda *a: calls.append(1) or match(*a)  # type: ignore[method-assign, func-returns-value]
    for i in range(63):
        sim.add(f"r{i}", [9] * 1024 + prompt(8, i), params(2))
    for _ in range(12):
        sim.step()
    assert len(calls) <= 2 * 63
    sim.run()
    calls.clear()
    for i in range(63):  # long ones that wait for their turn, behind one that takes 16 steps
        sim.add(f"s{i}", prompt(1024, i), params(2))
    for _ in range(12):
        sim.step()
    assert len(calls) <= 2 * 63


def test_solo_knows_what_the_scheduler_must_answer() -> None:
    """The oracle itself: it stops where the rules say."""
    request = EngineRequest("a", [2, 3], SamplingParams(max_tokens=5, ignore_eos=True), 0.0)
    tokens, reason, _ = solo(request, None, 0, 100)
    assert (len(tokens), reason) == (5, "length")
    assert solo(request, None, 0, 4)[0] == tokens[:2]
    assert solo(request, None, 1, 100)[0] != tokens
    request.sampling_params.stop_token_ids = [tokens[2]]
    assert solo(request, None, 0, 100) == (tokens[:3], "stop", tokens[2])
