"""Scheduler: one test per rule of its docstring.  Long random mixes are in test_scheduler_properties."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from simulator import Simulation, solo

from inferx.engine.block_pool import BlockAccountingError
from inferx.engine.config import SchedulerConfig
from inferx.engine.protocol import EngineRequest
from inferx.engine.request import Phase, Sequence, Status
from inferx.engine.scheduler import QueueFullError, SampleError, Scheduler, SchedulerOutput
from inferx.errors import InvalidRequestError
from inferx.sampling_params import SamplingParams


def simulation(**limits: Any) -> Simulation:
    config = {"num_blocks": 256, "block_size": 16, "max_model_len": 4096, "max_num_seqs": 8}
    return Simulation(SchedulerConfig(**{**config, "max_num_batched_tokens": 64, **limits}), random.Random(0))


def params(max_tokens: int | None = 8, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **more)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Different seeds differ from the first token on."""
    return [2 + seed, *([5] * (length - 1))]


def tokens_of(out: SchedulerOutput) -> dict[str, int]:
    return {e.seq.request_id: e.num_tokens for e in out.scheduled}


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
    sim.add("b", prompt(3))
    with pytest.raises(QueueFullError, match="2 requests wait already"):
        sim.add("c", prompt(3))
    sim.step()
    sim.add("c", prompt(3))
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


# The budget


def test_decodes_come_first_and_every_step_has_them() -> None:
    sim = simulation()
    a = sim.add("a", prompt(10), params(100))
    sim.step()
    sim.add("long", prompt(64 * 20, 1), params(1))
    for _ in range(30):
        out = sim.step()
        assert out.scheduled[0].seq is a.sequences[0]
        assert out.num_decodes >= 1
        assert out.total_num_tokens <= 64
    assert a.sequences[0].num_output_tokens == 31


def test_a_long_prompt_alone_gets_the_whole_budget() -> None:
    sim = simulation()
    sim.add("a", prompt(64 * 3 + 10), params(1))
    assert [sim.step().total_num_tokens for _ in range(4)] == [64, 64, 64, 10]


def test_a_short_prompt_starts_while_a_long_one_is_under_way() -> None:
    """Case B07: a stream, a prompt of 20 budgets, then a short prompt."""
    sim = simulation()
    a = sim.add("a", prompt(10), params(100))
    sim.step()
    b = sim.add("b", prompt(64 * 20, 1), params(1))
    sim.step()
    c = sim.add("c", prompt(8, 2), params(8))
    out = sim.step()
    assert tokens_of(out) == {"a": 1, "b": 55, "c": 8}
    assert c.sequences[0].num_output_tokens == 1
    while not c.sequences[0].finished:
        sim.step()
    assert b.sequences[0].num_computed_tokens < 64 * 20 * 0.6
    sim.run()
    assert a.sequences[0].num_output_tokens == 100


def test_a_long_prompt_keeps_half_whatever_stands_behind_it() -> None:
    sim = simulation(max_num_seqs=32)
    sim.add("long", prompt(64 * 4), params(1))
    for i in range(30):
        sim.add(f"s{i}", prompt(30, i + 1), params(1))
    out = sim.step()
    assert tokens_of(out) == {"long": 32, "s0": 30, "s1": 2}
    out = sim.step()
    assert tokens_of(out) == {"long": 32, "s1": 28, "s2": 4}
    sim.run()


def test_what_short_ones_leave_goes_back_to_the_long_ones_in_order() -> None:
    sim = simulation()
    sim.add("first", prompt(40), params(1))
    sim.add("second", prompt(200, 1), params(1))
    sim.add("third", prompt(200, 2), params(1))
    sim.add("short", prompt(5, 3), params(1))
    # 40 of 64 is long: 32 at first, the short one takes 5, first gets its other 8, second the rest.
    assert tokens_of(sim.step()) == {"first": 40, "short": 5, "second": 19}
    assert tokens_of(sim.step()) == {"second": 64}
    sim.run()


def test_less_urgent_short_prompts_get_only_what_is_left() -> None:
    sim = simulation()
    sim.add("long", prompt(100), params(1))
    sim.add("short", prompt(5, 1), params(1), priority=1)
    assert tokens_of(sim.step()) == {"long": 64}
    assert tokens_of(sim.step()) == {"long": 36, "short": 5}


def test_the_long_prefill_threshold_caps_a_chunk() -> None:
    sim = simulation(long_prefill_token_threshold=10)
    sim.add("a", prompt(100), params(1))
    sim.add("b", prompt(100, 1), params(1))
    sim.add("c", prompt(100, 2), params(1))
    assert tokens_of(sim.step()) == {"a": 10, "b": 10, "c": 10}
    assert tokens_of(sim.step()) == {"a": 10, "b": 10, "c": 10}
    sim.run()


def test_what_is_reserved_for_a_postponed_prompt_does_not_stand_in_its_own_way() -> None:
    sim = simulation(num_blocks=27, max_num_seqs=2)
    sim.add("first", prompt(64 + 33), params(1))  # 7 blocks
    sim.add("second", prompt(320, 1), params(1))  # all the other 20
    assert tokens_of(sim.step()) == {"first": 64}
    # 33 are still long: 32 of them at first, then the last one, then the second prompt.
    assert tokens_of(sim.step()) == {"first": 33, "second": 31}
    sim.run()


def test_a_second_long_prompt_comes_in_when_there_is_budget_for_it() -> None:
    sim = simulation()
    sim.add("first", prompt(200), params(1))
    second = sim.add("second", prompt(200, 1), params(1)).sequences[0]
    sim.add("short", prompt(32, 2), params(1))
    assert tokens_of(sim.step()) == {"first": 32, "short": 32}
    assert second.status is Status.WAITING
    sim.run()


def test_a_long_prompt_that_is_mostly_cached_counts_as_short() -> None:
    sim = simulation()
    sim.add("before", prompt(193), params(1))
    sim.run()
    sim.add("first", prompt(200, 1), params(1))
    sim.add("second", [*prompt(192), 7, 7, 7, 7], params(1))
    sim.add("third", prompt(200, 2), params(1))
    assert tokens_of(sim.step()) == {"first": 60, "second": 4}
    sim.run()


def test_a_postponed_prompt_without_room_is_not_overtaken_by_another() -> None:
    sim = simulation(num_blocks=26, max_num_seqs=4)
    sim.add("first", prompt(64 + 33), params(1))  # 7 blocks
    sim.add("second", prompt(320, 1), params(1))  # 20
    sim.add("third", prompt(100, 2), params(1))  # 7
    assert tokens_of(sim.step()) == {"first": 64}
    assert tokens_of(sim.step()) == {"first": 33}
    assert tokens_of(sim.step()) == {"second": 64}
    sim.run()


def test_a_postponed_long_prompt_is_not_robbed_of_its_place() -> None:
    """Its slot and blocks stay reserved while short ones pass."""
    sim = simulation(num_blocks=32, max_num_seqs=4)  # 512 tokens
    sim.add("first", prompt(200), params(1))  # 13 blocks
    second = sim.add("second", prompt(200, 1), params(1))  # 13 more
    for i in range(6):
        sim.add(f"s{i}", prompt(30, i + 2), params(100))  # 2 blocks each, and they grow
    while second.sequences[0].status is Status.WAITING:
        sim.step()
        assert sim.num_steps < 8
    sim.run()


# Order


def test_first_come_first_served_among_equals() -> None:
    sim = simulation(max_num_seqs=1)
    order = []
    for name, arrival in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        sim.add(name, prompt(5), params(2), arrival_time=arrival)
    while sim.scheduler.has_unfinished():
        order += [s.request_id for s in sim.step().admitted]
    assert order == ["a", "b", "c"]


@pytest.mark.parametrize(("policy", "expected"), [("priority", ["c", "b", "a"]), ("fcfs", ["a", "b", "c"])])
def test_lower_priority_values_first(policy: str, expected: list[str]) -> None:
    sim = simulation(max_num_seqs=1, policy=policy)
    order = []
    for name, priority in (("a", 5), ("b", 0), ("c", -5)):
        sim.add(name, prompt(5), params(2), priority=priority)
    while sim.scheduler.has_unfinished():
        order += [s.request_id for s in sim.step().admitted]
    assert order == expected


def test_an_urgent_prompt_goes_before_one_under_way() -> None:
    sim = simulation()
    sim.add("slow", prompt(300), params(1), priority=1)
    sim.step()
    sim.add("urgent", prompt(100, 1), params(1))
    assert tokens_of(sim.step()) == {"urgent": 64}
    assert tokens_of(sim.step()) == {"urgent": 36, "slow": 28}


@pytest.mark.parametrize("short_of", ["blocks", "slots"])
def test_nobody_overtakes_a_request_that_waits_for_room(short_of: str) -> None:
    sim = simulation(num_blocks=16, max_num_seqs=4) if short_of == "blocks" else simulation(max_num_seqs=4)
    sim.add("running", prompt(100), params(5, n=2))
    sim.step()
    sim.step()
    if short_of == "blocks":
        big = sim.add("big", prompt(160, 1), params(2))
    else:
        big = sim.add("big", prompt(16, 1), params(2, n=3))
    for i in range(5):
        sim.add(f"s{i}", prompt(3, i + 2), params(2))
    while big.sequences[0].status is Status.WAITING:
        out = sim.step()
        assert (
            not [s for s in out.admitted if s.request_id.startswith("s")]
            or out.admitted[0] is big.sequences[0]
        )
    sim.run()


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


# The prefix cache


def test_a_shared_prefix_is_computed_once() -> None:
    """16 requests at once that share 1,024 tokens; also across a partly filled block."""
    for shared in (1024, 1030):
        sim = simulation(num_blocks=512, max_num_seqs=16, max_num_batched_tokens=512)
        jobs = [sim.add(f"r{i}", [9] * shared + prompt(32, i), params(32)) for i in range(16)]
        sim.run()
        computed = sum(job.sequences[0].num_computed_prompt_tokens for job in jobs)
        assert computed <= shared + 16 * 32 + 15 * (shared % 16)
        assert sim.num_steps < 3 + 32 + 3


def test_a_short_shared_prefix_is_not_worth_waiting_for() -> None:
    sim = simulation(max_num_batched_tokens=512)
    for i in range(4):
        sim.add(f"r{i}", [9] * 16 + prompt(20, i), params(2))
    assert len(sim.step().admitted) == 4


def test_who_waits_for_a_prefix_lets_others_pass_but_keeps_its_place() -> None:
    sim = simulation(max_num_seqs=3)
    sim.add("first", [9] * 200 + prompt(5), params(50))
    sim.step()
    twin = sim.add("twin", [9] * 200 + prompt(5, 1), params(2)).sequences[0]
    for i in range(3):
        sim.add(f"other{i}", prompt(5, i + 2), params(50))
    admitted = []
    while twin.status is Status.WAITING:
        admitted += [s.request_id for s in sim.step().admitted]
    assert admitted == ["other0", "twin"]  # of 3 slots, one was kept for it all the time
    assert twin.num_cached_tokens >= 192
    sim.run()


def test_who_waits_for_a_prefix_keeps_its_blocks() -> None:
    sim = simulation(num_blocks=20)
    sim.add("first", [9] * 160 + prompt(5), params(1))  # 11 blocks
    sim.step()
    twin = sim.add("twin", [9] * 160 + prompt(80, 1), params(1)).sequences[0]  # 5 more
    for i in range(2):
        sim.add(f"other{i}", prompt(30, i + 2), params(2))  # 2 each, and there are 4 left
    sim.add("big", prompt(70, 4), params(1))  # 5
    admitted = []
    while twin.status is Status.WAITING:
        admitted += [s.request_id for s in sim.step().admitted]
    assert admitted == ["other0", "other1", "twin"]
    sim.run()


def test_a_postponed_prompt_that_waits_for_a_prefix_blocks_no_other() -> None:
    sim = simulation(long_prefill_token_threshold=10)
    for i in range(5):  # long ones fill their half: 10, 10, 10, 2, and the fifth is postponed
        sim.add(f"r{i}", prompt(100, i), params(1))
    sim.add("twin", prompt(100, 4), params(1))
    sim.add("other", prompt(100, 6), params(1))
    assert tokens_of(sim.step()) == {"r0": 10, "r1": 10, "r2": 10, "r3": 10, "r4": 10, "other": 10}
    sim.run()


def test_who_waits_for_a_prefix_goes_on_when_its_owner_leaves() -> None:
    sim = simulation()
    sim.add("first", [9] * 300, params(2))
    twin = sim.add("twin", [9] * 300 + prompt(5, 1), params(2))
    sim.step()
    assert twin.sequences[0].status is Status.WAITING
    sim.abort("first")
    assert tokens_of(sim.step()) == {"twin": 64}
    assert twin.sequences[0].num_cached_tokens == 64
    sim.run()


def test_nobody_waits_for_a_less_urgent_owner() -> None:
    sim = simulation()
    sim.add("slow", [9] * 300, params(2), priority=1)
    sim.step()
    sim.add("urgent", [9] * 300, params(2))
    assert tokens_of(sim.step()) == {"urgent": 64}
    sim.run()


def test_hits_are_counted_and_fall_when_others_need_the_room() -> None:
    """Case B05: the same prompt again, cached; after traffic that evicts it, not."""
    sim = simulation(num_blocks=20, max_num_batched_tokens=512)
    stats = sim.scheduler.stats

    def hits(name: str) -> int:
        before = stats().prefix_cache_hits
        job = sim.add(name, prompt(100), params(3))
        sim.run()
        assert job.sequences[0].num_cached_tokens == stats().prefix_cache_hits - before
        return stats().prefix_cache_hits - before

    assert [hits("a"), hits("b")] == [0, 96]
    for length, left in ((300, 16), (318, 0)):  # 19 of the 20 blocks, then all of them
        sim.add(f"filler{length}", prompt(length, length), params(2))
        sim.run()
        assert hits(f"c{length}") == left
    assert stats().prefix_cache_queries == 4 * 100 + 300 + 318
    assert stats().num_cached_blocks > 0


def test_equal_text_under_other_keys_is_not_found() -> None:
    """Case B09x."""
    sim = simulation(max_num_batched_tokens=512)
    keys: list[dict[str, str]] = [
        {},
        {"adapter": "a"},
        {"adapter": "b"},
        {"salt": "a"},
        {"prefix_key": "a"},
        {"adapter": "a:2"},
        {"salt": "a", "adapter": "a"},
    ]
    for i, key in enumerate(keys):
        for j, cached in ((0, 0), (1, 96)):
            job = sim.add(f"r{i}.{j}", prompt(100), params(2), **key)
            sim.run()
            assert job.sequences[0].num_cached_tokens == cached, key


@pytest.mark.parametrize("block_size", [1, 8, 16, 32, 64])
@pytest.mark.parametrize("caching", [True, False])
def test_block_sizes(block_size: int, caching: bool) -> None:
    """Case B11x: a pool under pressure, prompts that are not multiples of the block."""
    sim = simulation(
        num_blocks=256 // block_size, block_size=block_size, max_model_len=200, enable_prefix_caching=caching
    )
    for i in range(6):
        sim.add(f"r{i}", [9] * 33 + prompt(10 + 7 * i, i), params(60, n=1 + i % 2))
    sim.run()
    stats = sim.scheduler.stats()
    assert stats.num_preemptions > 0
    assert (stats.num_cached_blocks > 0) == caching


# Preemption


def decoding(sim: Simulation, *lengths: int, priorities: tuple[int, ...] = ()) -> list[Sequence]:
    """Requests of these prompt lengths, all past their first token."""
    jobs = [
        sim.add(f"r{i}", prompt(n, i), params(None), priority=priorities[i] if priorities else 0)
        for i, n in enumerate(lengths)
    ]
    while any(job.sequences[0].num_output_tokens == 0 for job in jobs):
        sim.step()
    return [job.sequences[0] for job in jobs]


def first_victim(sim: Simulation) -> Sequence:
    while True:
        out = sim.step()
        if out.preempted:
            return out.preempted[0]


def test_the_cheapest_to_recompute_goes() -> None:
    sim = simulation(num_blocks=16, max_num_batched_tokens=256)
    a, b, c = decoding(sim, 60, 20, 90)
    victim = first_victim(sim)
    assert victim is b
    assert victim.status is Status.PREEMPTED
    assert victim.num_preemptions == 1
    assert sim.scheduler.waiting == [b]
    assert sim.scheduler.running == [a, c]
    sim.run()


def test_the_first_in_order_is_spared() -> None:
    sim = simulation(num_blocks=16, max_num_batched_tokens=256)
    _, b, _ = decoding(sim, 20, 60, 90)
    assert first_victim(sim) is b
    sim.run()


def test_only_the_least_urgent_go() -> None:
    sim = simulation(num_blocks=16, max_num_batched_tokens=256)
    *_, d = decoding(sim, 60, 20, 15, 80, priorities=(0, 0, 0, 1))
    assert first_victim(sim) is d
    sim.run()


def test_of_equals_the_last_goes() -> None:
    sim = simulation(num_blocks=15, max_num_batched_tokens=256)
    *_, d = decoding(sim, 40, 40, 40, 40)
    assert first_victim(sim) is d
    sim.run()


def test_shared_blocks_cost_nothing_to_get_back() -> None:
    sim = simulation(num_blocks=20, max_num_batched_tokens=256)
    sim.add("a", [9] * 112 + [2], params(None))
    sim.step()
    shares = sim.add("b", [9] * 112 + [3] * 10, params(None)).sequences[0]
    own = sim.add("c", prompt(60, 5), params(None)).sequences[0]
    victim = first_victim(sim)
    assert victim is shares
    assert len(shares.token_ids) > len(own.token_ids)
    sim.run()


def test_a_preempted_request_goes_on_where_it_was() -> None:
    sim = simulation(num_blocks=16, max_num_batched_tokens=256)
    decoding(sim, 60, 20, 90)
    victim = first_victim(sim)
    so_far = victim.output_token_ids
    known, computed = victim.num_tokens, victim.recompute_end
    assert computed == known - 1
    resumed = None
    while resumed is None:
        out = sim.step()
        resumed = next((e for e in out.scheduled if e.seq is victim), None)
    assert out.resumed == [victim]
    assert resumed.first_position + resumed.num_tokens == known
    assert resumed.phase is (Phase.DECODE if resumed.first_position == computed else Phase.RECOMPUTE)
    assert victim.num_recomputed_tokens == computed - resumed.first_position
    assert victim.output_token_ids[:-1] == so_far
    sim.run()
    assert victim.num_cached_tokens == 0  # of the first admission


def test_who_finds_everything_cached_decodes_at_once() -> None:
    sim = simulation(num_blocks=15, max_num_batched_tokens=256)
    *others, d = decoding(sim, 40, 40, 40, 40)
    assert first_victim(sim) is d
    for seq in others:
        sim.abort(seq.request_id)
    out = sim.step()
    assert out.resumed == [d]
    assert [(e.first_position, e.num_tokens, e.phase) for e in out.scheduled] == [(48, 1, Phase.DECODE)]
    assert d.num_recomputed_tokens == 0
    sim.run()


def test_recomputed_tokens_are_counted() -> None:
    sim = simulation(num_blocks=16, max_num_batched_tokens=256, enable_prefix_caching=False)
    decoding(sim, 60, 20, 90)
    victim = first_victim(sim)
    lost = victim.recompute_end
    sim.abort("r0")
    sim.abort("r2")
    sim.run()
    assert victim.num_recomputed_tokens == lost
    assert victim.num_computed_prompt_tokens == 20
    assert victim.num_prefill_chunks == 2
    assert victim.num_decode_steps == victim.num_output_tokens - 2
    assert sim.scheduler.stats().num_preemptions >= 1


def test_a_prompt_under_way_can_be_the_victim() -> None:
    sim = simulation(block_size=1, num_blocks=28, max_num_seqs=2, max_num_batched_tokens=4)
    sim.add("a", prompt(5), params(None))
    b = sim.add("b", prompt(20, 1), params(1), priority=1).sequences[0]
    while b.status is not Status.PREEMPTED:
        out = sim.step()
    assert 0 < b.recompute_end < 20
    assert [e.seq.request_id for e in out.scheduled] == ["a"]
    assert out.preempted == [b]
    assert b.num_output_tokens == 0
    sim.run()
    assert b.num_computed_prompt_tokens == 20
    assert b.num_preemptions == 1


def test_nobody_comes_in_while_somebody_is_thrown_out() -> None:
    sim = simulation(num_blocks=12, max_num_seqs=2, max_num_batched_tokens=256)
    sim.add("a", prompt(60), params(100))
    sim.add("b", prompt(60, 1), params(100), priority=1)
    sim.step()
    urgent = sim.add("urgent", prompt(3, 2), params(2)).sequences[0]  # waits for a slot
    assert first_victim(sim).request_id == "b"
    assert urgent.status is Status.WAITING
    assert sim.step().admitted == [urgent]
    sim.run()


def test_a_request_that_cannot_grow_needs_no_room_to_grow() -> None:
    for max_tokens, admitted in ((5, ["b"]), (6, [])):  # 12 + 5 - 1 tokens fill block 1
        sim = simulation(num_blocks=2, max_num_batched_tokens=256)
        sim.add("a", prompt(12), params(max_tokens))
        sim.step()
        sim.add("b", prompt(12, 1), params(2))
        assert [s.request_id for s in sim.step().admitted] == admitted
        sim.run()


def test_admission_leaves_room_for_those_who_run_to_grow() -> None:
    """Without it, requests would be taken in only to be thrown out a moment later."""
    sim = simulation(num_blocks=20, max_num_batched_tokens=512, enable_prefix_caching=False)
    for i in range(8):
        sim.add(f"r{i}", prompt(47, i), params(60))
    last_admission, gaps = 0, []
    while sim.scheduler.has_unfinished():
        out = sim.step()
        if out.admitted or out.resumed:
            last_admission = sim.num_steps
        if out.preempted:
            gaps.append(sim.num_steps - last_admission)
    assert gaps[0] >= 16  # a block's worth of steps
    assert min(gaps) >= 4


def test_preemptions_are_few() -> None:
    """Each one is paid for by a block that somebody filled, so they cannot go round in circles."""
    sim = simulation(num_blocks=10, max_num_batched_tokens=128, max_model_len=100)
    for i in range(12):
        sim.add(f"r{i}", prompt(20 + i, i), params(None))
    sim.run()
    stats = sim.scheduler.stats()
    assert 0 < stats.num_preemptions <= stats.generation_tokens / 16


def test_a_steady_stream_of_newcomers_does_not_starve_anybody() -> None:
    sim = simulation(num_blocks=12, max_num_seqs=4, max_model_len=150)
    old = [sim.add(f"old{i}", prompt(60, i), params(40)) for i in range(3)]
    step = 0
    while not all(job.sequences[0].finished for job in old):
        if step % 3 == 0:
            sim.add(f"new{step}", prompt(10 + step % 40, 5 + step), params(20))
        sim.step()
        step += 1
        assert step < 400
    sim.run()


def test_lost_blocks_are_noticed_not_waited_for() -> None:
    sim = simulation(num_blocks=4)
    decoding(sim, 20)
    while sim.scheduler.kv.pool.num_free:
        sim.scheduler.kv.pool.allocate()
    while sim.scheduler.running[0].num_computed_tokens < 32:
        sim.scheduler.update(sim.scheduler.schedule(), [5])
    with pytest.raises(BlockAccountingError, match="blocks were lost"):
        sim.scheduler.schedule()


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
    with pytest.raises(RuntimeError, match="has not been handed to update"):
        sim.scheduler.schedule()
    with pytest.raises(ValueError, match=r"one entry per sample \(1\), got 0"):
        sim.scheduler.update(out, [])
    sim.scheduler.update(out, sim.forward(out))
    with pytest.raises(RuntimeError, match="not that of the last schedule"):
        sim.scheduler.update(out, [5])
    sim.run()


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
