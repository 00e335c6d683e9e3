"""Two steps in flight: what is planned, launched, wasted and charged, one situation at a time."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fake_device import Truth
from overlap_harness import Bench
from simulator import EOS

from inferx.engine.config import SchedulerConfig
from inferx.engine.protocol import EngineRequest
from inferx.engine.request import Phase, Sequence, Status
from inferx.engine.scheduler import SampleError, Scheduler, SchedulerOutput
from inferx.engine.scheduler_output import PENDING_TOKEN
from inferx.sampling_params import SamplingParams


def bench(depth: int = 2, **limits: Any) -> Bench:
    config = {"num_blocks": 64, "block_size": 4, "max_model_len": 256, "max_num_seqs": 8}
    return Bench(
        SchedulerConfig(**{**config, "max_num_batched_tokens": 32, **limits}), random.Random(0), depth
    )


def params(max_tokens: int | None = 8, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, **more)


def prompt(length: int, seed: int = 0) -> list[int]:
    """Different seeds differ from the first token on."""
    return [2 + seed, *([5] * (length - 1))]


def scheduler(**limits: Any) -> Scheduler:
    return bench(**limits).scheduler


def add(s: Scheduler, name: str, length: int, p: SamplingParams, priority: int = 0) -> Sequence:
    tokens = prompt(length, ord(name[0]))
    return s.add_request(EngineRequest(name, tokens, p, 0.0, priority)).sequences[0]


def entries(out: SchedulerOutput) -> list[tuple[str, int, int, int | None]]:
    return [(e.seq.request_id, e.first_position, e.num_tokens, e.token_source) for e in out.scheduled]


def names(sequences: list[Sequence]) -> list[str]:
    return [seq.request_id for seq in sequences]


# Planning behind a step in flight


def test_a_decode_goes_on_from_the_token_that_is_on_its_way() -> None:
    s = scheduler()
    a, b = add(s, "a", 5, params()), add(s, "b", 7, params())
    first, second = s.schedule(), s.schedule()
    assert entries(second) == [("a", 5, 1, 0), ("b", 7, 1, 1)]
    assert [e.phase for e in second.scheduled] == [Phase.DECODE] * 2
    assert a.token_ids[-1] == b.token_ids[-1] == PENDING_TOKEN
    assert [(u.seq, u.token_id) for u in s.update(first, [11, 12])] == [(a, 11), (b, 12)]
    assert (a.output_token_ids, b.output_token_ids) == ([11], [12])
    third = s.schedule()
    assert entries(third) == [("a", 6, 1, 0), ("b", 8, 1, 1)]
    s.update(second, [13, 14])
    s.update(third, [15, 16])
    assert (a.output_token_ids, b.output_token_ids) == ([11, 13, 15], [12, 14, 16])


def test_without_a_step_in_flight_tokens_come_from_the_host() -> None:
    s = scheduler()
    a = add(s, "a", 5, params())
    first, second = s.schedule(), s.schedule()
    s.update(first, [11])
    s.update(second, [12])
    assert entries(s.schedule()) == [("a", 6, 1, None)]
    assert list(a.token_ids[5:]) == [11, 12]


def test_the_source_is_counted_over_all_samples_of_the_step() -> None:
    s = scheduler()
    add(s, "a", 5, params(2))
    s.update(s.schedule(), [11])
    add(s, "forks", 4, params(n=3))
    add(s, "b", 6, params())
    out, behind = s.schedule(), s.schedule()
    assert [len(e.samples) for e in out.scheduled] == [1, 3, 1]
    assert entries(behind) == [("b", 6, 1, 4)]
    assert names(behind.ending) == ["a"]
    assert names(behind.forking) == ["forks"]
    assert behind.scheduled_out == []
    s.update(out, [1, 2, 3, 4, 5])
    assert sorted(entries(s.schedule())) == [("b", 7, 1, 0), *[("forks", 4, 1, None)] * 3]


def test_chunks_follow_each_other_at_once() -> None:
    s = scheduler(max_num_batched_tokens=8)
    add(s, "a", 14, params())
    first, second = s.schedule(), s.schedule()
    assert entries(first) == [("a", 0, 8, None)]
    assert entries(second) == [("a", 8, 6, None)]
    assert not first.samples
    s.update(first, [])
    assert entries(s.schedule()) == [("a", 14, 1, 0)]


@pytest.mark.parametrize(
    ("limits", "max_tokens"), [({}, 2), ({"max_model_len": 9}, None), ({"num_blocks": 2, "block_size": 4}, 2)]
)
def test_nobody_is_planned_beyond_the_last_token(limits: dict[str, int], max_tokens: int | None) -> None:
    s = scheduler(**limits)
    a = add(s, "a", 7 if max_tokens is None else 6, params(max_tokens))
    first, second = s.schedule(), s.schedule()
    s.update(first, [11])
    third = s.schedule()
    assert third.scheduled == []
    assert third.ending == [a]
    assert s.update(second, [12])[0].finish_reason == "length"
    assert s.update(third, []) == []
    assert not s.has_unfinished()


def test_the_slot_of_an_ending_one_is_taken_at_once() -> None:
    s = scheduler(max_num_seqs=1)
    add(s, "a", 5, params(1))
    add(s, "b", 5, params())
    first, second = s.schedule(), s.schedule()
    assert names(first.admitted) == ["a"]
    assert names(second.admitted) == ["b"]
    s.update(first, [11])
    assert names(s.running) == ["b"]


# Taking in


def test_what_ends_leaves_one_entry_for_nothing() -> None:
    s = scheduler()
    a = add(s, "a", 5, SamplingParams(max_tokens=50, eos_token_ids=[EOS]))
    b = add(s, "b", 5, params())
    first, second = s.schedule(), s.schedule()
    assert [u.finish_reason for u in s.update(first, [EOS, 11])] == ["stop", None]
    assert a.output_token_ids == [EOS]
    assert s.running == [b]
    third = s.schedule()
    assert entries(third) == [("b", 6, 1, 1)]  # number 1 of a step in which "a" still is
    assert [u.seq for u in s.update(second, [12, 13])] == [b]
    assert a.output_token_ids == [EOS]


def test_an_error_takes_the_pending_token_along() -> None:
    s = scheduler()
    a = add(s, "a", 5, params())
    first, second = s.schedule(), s.schedule()
    assert [u.error for u in s.update(first, [SampleError("NaN")])] == ["NaN"]
    assert a.output_token_ids == []
    assert s.update(second, [12]) == []
    assert not s.has_unfinished()


def test_an_abort_takes_the_pending_token_along() -> None:
    s = scheduler()
    a = add(s, "a", 5, params())
    first, second = s.schedule(), s.schedule()
    s.allowed_waste = 2  # type: ignore[attr-defined]  # both steps were planned before
    s.abort("a")
    assert a.output_token_ids == []
    assert s.kv.pool.num_free == s.kv.pool.num_blocks
    assert s.update(first, [11]) == s.update(second, [12]) == []


def test_a_block_that_a_pending_token_fills_is_shared_once_the_token_is_known() -> None:
    s = scheduler()
    a = add(s, "a", 7, params())
    first, second = s.schedule(), s.schedule()
    s.update(first, [11])  # positions 0 to 6
    third = s.schedule()
    assert a.num_computed_tokens == 8
    assert a.num_registered_blocks == 1
    s.update(second, [12])  # position 7, whose token was pending when it was planned
    assert a.num_registered_blocks == 2
    s.update(third, [13])
    s.abort("a")
    again = s.add_request(EngineRequest("again", [*prompt(7, ord("a")), 11, 12, 13], params(), 0.0))
    s.schedule()
    assert again.sequences[0].num_cached_tokens == 8


# Preemption behind a step in flight


def two_that_fill_the_pool() -> tuple[Scheduler, Sequence, Sequence]:
    """Each has 2 blocks of 4 and one position left in the second; one block is left."""
    s = scheduler(num_blocks=5, enable_prefix_caching=False, long_prefill_token_threshold=7)
    return s, add(s, "a", 7, params(None)), add(s, "b", 7, params(None))


def test_the_token_of_a_preempted_one_is_taken_in_late() -> None:
    s, a, b = two_that_fill_the_pool()
    first, second = s.schedule(), s.schedule()
    s.update(first, [11, 12])
    third = s.schedule()
    assert names(third.preempted) == ["b"]
    assert entries(third) == [("a", 8, 1, 0)]
    assert b.status is Status.PREEMPTED
    assert [(u.seq, u.token_id) for u in s.update(second, [13, 14])] == [(a, 13), (b, 14)]
    assert b.output_token_ids == [12, 14]
    assert b.num_decode_steps == 1
    assert b.recompute_end == 8
    s.abort("a")
    resumed = s.schedule()
    assert entries(resumed) == [("b", 0, 7, None)]
    s.update(third, [15])
    last = s.schedule()
    assert entries(last) == [("b", 7, 2, None)]
    s.update(resumed, [])
    s.update(last, [16])
    assert b.output_token_ids == [12, 14, 16]
    assert (b.num_computed_prompt_tokens, b.num_recomputed_tokens) == (7, 8)
    assert s.stats().prompt_tokens == 14  # each prompt once


def test_without_a_result_the_token_is_drawn_again() -> None:
    s, _, b = two_that_fill_the_pool()
    first, second = s.schedule(), s.schedule()
    s.update(first, [11, 12])
    s.schedule()
    assert [u.token_id for u in s.update(second, [13, None])] == [13]
    assert b.output_token_ids == [12]
    assert b.token_source is None


def test_who_awaits_only_the_last_token_goes_first() -> None:
    """It needs its blocks no more; whoever else went would have to compute again."""
    s = scheduler(num_blocks=7, enable_prefix_caching=False)
    add(s, "a", 7, params(None))
    add(s, "b", 7, params(2), priority=-1)  # first in order, and spared otherwise
    add(s, "c", 7, params(None), priority=1)
    first, second = s.schedule(), s.schedule()
    s.update(first, [11, 12, 13])
    third = s.schedule()
    assert names(third.preempted) == ["b"]
    assert sorted(names([e.seq for e in third.scheduled])) == ["a", "c"]
    updates = s.update(second, [14, 15, 16])
    assert [(u.seq.request_id, u.finish_reason) for u in updates] == [
        ("b", "length"),
        ("a", None),
        ("c", None),
    ]


def test_a_lonely_one_waits_for_blocks_that_a_copy_in_flight_holds() -> None:
    """Nobody could be preempted, and no block is lost: one comes free when the step in flight is over."""
    s = scheduler(num_blocks=3, block_size=4, max_model_len=12)
    s.add_request(EngineRequest("cached", [1, 2, 3, 4], params(1), 0.0))
    s.update(s.schedule(), [9])
    seq = s.add_request(EngineRequest("a", [1, 2, 3, 7, 8, 9, 9, 9], params(None), 0.0)).sequences[0]
    first = s.schedule()
    ((source, _),) = first.block_copies
    second = s.schedule()
    assert second.scheduled == []
    assert second.scheduled_out == [seq]
    assert s.kv.pool.ref_counts[source] == 1  # the first step may have to run again, and copy again
    s.update(first, [10])
    assert s.kv.pool.ref_counts[source] == 0
    s.update(second, [])
    assert entries(s.schedule()) == [("a", 8, 1, None)]
    assert seq.num_preemptions == 0


# The engine over a late device


def send(b: Bench, number: int, p: SamplingParams, length: int = 6) -> None:
    for i in range(number):
        b.add(f"r{i}", prompt(length, i), p)


def test_the_next_step_is_launched_before_results_are_awaited() -> None:
    b = bench()
    send(b, 3, params(10))
    behind = []
    wait = b.device.wait

    def watched(step: Any) -> Any:
        behind.append(sum(not s.ran for s in b.device.queue if s is not step))
        return wait(step)

    b.device.wait = watched  # type: ignore[method-assign]
    b.run()
    assert behind == [1] * 9 + [0]  # nothing is left to compute behind the last


@pytest.mark.parametrize("depth", [1, 2])
def test_ends_by_length_waste_nothing(depth: int) -> None:
    b = bench(depth)
    send(b, 5, params(7))
    ran = []
    b.device.on_run = lambda: ran.append(1)
    while b.core.has_work:
        assert b.step(), "a step without an answer"
    b.run()
    assert len(ran) == 7
    assert not b.seen["wasted"]


def test_a_stopped_client_stops_its_work_at_once() -> None:
    b = bench()
    send(b, 2, params(100))
    for _ in range(5):
        b.step()
    assert [e.name for s in b.device.queue for e in s.entries] == ["r0", "r1"]
    b.abort("r0")
    b.step()
    assert [e.name for s in b.device.queue for e in s.entries] == ["r1"]
    b.abort("r1")
    assert b.core.has_work  # a step is still under way
    assert b.step() == []
    assert not b.core.has_work
    b.check_idle()


def test_histories_are_awaited_only_while_somebody_needs_them() -> None:
    b = bench()
    b.add("penalised", prompt(6), params(5, presence_penalty=1.0))
    b.add("plain", prompt(6, 1), params(12))
    in_flight = []
    while b.core.has_work:
        b.step()
        in_flight.append(len(b.core._steps))
    assert in_flight[:4] == [0] * 4
    assert set(in_flight[5:-1]) == {1}
    b.run()


def test_an_id_is_free_again_while_its_old_step_runs() -> None:
    b = bench()
    b.add("a", prompt(6), params(20))
    for _ in range(3):
        b.step()
    b.core.abort("a")
    b.heard.clear()
    b.add("a", prompt(6, 3), params(4))
    while b.core.has_work:
        b.step()
    assert b.answer("a") == Truth(b.requests["a"], 0).outputs(4)
    b.check_idle()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("where", ["launch", "results"])
@pytest.mark.parametrize("position", [0, 5, 6, 9])
def test_only_the_guilty_one_ends(depth: int, where: str, position: int) -> None:
    b = bench(depth)
    send(b, 4, params(8))
    b.device.broken["r2"] = (where, position)
    b.run()
    errors = {name for (name, _), outputs in b.heard.items() if outputs[-1].finish_reason == "error"}
    assert errors == {"r2"}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [8, 32])  # of two chunks, the one without a sample fails
def test_what_a_failed_step_computed_is_not_found_in_the_cache(depth: int, budget: int) -> None:
    """Also not when a good block with the same tokens was there, and others continue from it."""
    b = bench(depth, max_num_batched_tokens=budget)
    b.add("good", prompt(12), params(1))
    b.run()
    # Prompt log-probabilities: computed anew, side by side with what is cached.
    b.device.broken["bad"] = ("results", 6)
    b.add("bad", prompt(10), params(1, prompt_logprobs=0))
    b.run()
    b.add("after", prompt(12), params(3))
    b.run()
    assert b.heard["bad", 0][-1].finish_reason == "error"


@pytest.mark.parametrize("depth", [1, 2])
def test_nor_is_what_a_failed_sample_computed(depth: int) -> None:
    b = bench(depth)
    b.add("good", prompt(12), params(1))
    b.run()
    b.device.spoilt.add(("bad", 0, 0))
    b.add("bad", prompt(8), params(1, prompt_logprobs=0))
    blocks = {n.digest: n.blocks[0] for n in b.scheduler.kv.cache._nodes.values()}
    b.run()
    assert {n.digest: n.blocks[0] for n in b.scheduler.kv.cache._nodes.values()} == blocks


@pytest.mark.parametrize("depth", [1, 2])
def test_failing_copies_end_those_in_the_step(depth: int) -> None:
    b = bench(depth)
    b.add("forks", prompt(6), params(8, n=2))
    b.device.copies_fail = True
    while b.core.has_work:
        b.step()
    last = [outputs[-1] for outputs in b.heard.values()]
    assert len(last) == 2
    assert all(o.finish_reason == "error" and "no copy" in (o.error or "") for o in last)
    b.check_idle()
    b.device.copies_fail = False
    b.requests.clear()
    b.add("again", prompt(6), params(8, n=2))
    b.run()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("where", ["before launch", "after launch", "before results", "after results"])
@pytest.mark.parametrize("step", range(5))
def test_an_interrupt_loses_nothing(depth: int, where: str, step: int) -> None:
    b = bench(depth)
    send(b, 3, params(6, n=2))
    for i in range(6):
        if i == step:
            b.device.interrupt = where
        b.step()
    assert b.seen["interrupted"] == 1
    b.run()


# Time


@pytest.mark.parametrize("depth", [1, 2])
def test_each_second_goes_to_what_it_was_spent_on(depth: int) -> None:
    """A step takes a second on this device; planning next to nothing."""
    b = bench(depth, max_num_batched_tokens=8)
    b.add("a", prompt(14), params(6))
    b.run()
    (m,) = b.metrics
    assert m.queue_time == pytest.approx(0, abs=0.1)
    assert m.prefill_time == pytest.approx(2, abs=0.1)
    assert m.decode_time == pytest.approx(5, abs=0.1)
    assert m.time_to_first_token == pytest.approx(2, abs=0.1)
    assert m.e2e_time == pytest.approx(7, abs=0.1)


def test_a_newcomer_queues_until_its_step_is_planned() -> None:
    b = bench()
    b.add("a", prompt(6), params(10))
    b.step()
    b.add("b", prompt(6, 1), params(3))
    b.run()
    newcomer = b.metrics[0]
    assert newcomer.queue_time == pytest.approx(0, abs=0.1)
    # A step without it was under way when its own was planned.
    assert newcomer.prefill_time == pytest.approx(2, abs=0.1)
    assert newcomer.decode_time == pytest.approx(2, abs=0.1)


def test_forks_pause_for_a_step() -> None:
    b = bench()
    b.add("forks", prompt(6), params(4, n=3))
    b.add("other", prompt(6, 1), params(10))
    b.run()
    for m in b.metrics[:3]:
        assert m.prefill_time == pytest.approx(1, abs=0.1)
        assert m.stall_scheduled_out_time == pytest.approx(1, abs=0.1)
        assert m.decode_time == pytest.approx(3, abs=0.1)
