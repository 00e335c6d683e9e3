"""Background work: interactive requests are scheduled as if it were not there, and it gets to its end."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from overlap_harness import Bench
from simulator import Simulation, params, prompt, simulation, tokens_of

from inferx.engine.config import SchedulerConfig
from inferx.engine.protocol import BACKGROUND_PRIORITY, EngineRequest
from inferx.engine.scheduler import Scheduler, SchedulerOutput
from inferx.errors import InvalidRequestError
from inferx.sampling_params import SamplingParams

SETTINGS = settings(
    derandomize=True, database=None, deadline=None, max_examples=200, suppress_health_check=list(HealthCheck)
)


def background(sim: Simulation, name: str, length: int, seed: int, max_tokens: int = 8) -> None:
    sim.add(name, prompt(length, seed), params(max_tokens), priority=BACKGROUND_PRIORITY)


def names(out: SchedulerOutput) -> list[str]:
    return [e.seq.request_id for e in out.scheduled]


# One situation at a time


def test_alone_it_fills_the_step_with_small_chunks_of_prompts() -> None:
    sim = simulation(max_num_batched_tokens=64, background_chunk=24)
    for i in range(4):
        background(sim, f"b{i}", 20, i)
    assert sum(tokens_of(sim.step()).values()) == 24
    for _ in range(3):
        sim.step()
    assert names(sim.step()) == ["b0", "b1", "b2", "b3"]
    sim.run()


def test_beside_interactive_work_it_gets_its_tokens_and_stands_still_otherwise() -> None:
    sim = simulation(max_num_seqs=8, background_tokens=3)
    for i in range(6):
        background(sim, f"b{i}", 4, i, 20)
    for _ in range(3):
        sim.step()
    sim.add("i", prompt(10, 9), params(6))
    out = sim.step()
    assert tokens_of(out) == {"b0": 1, "b1": 1, "b2": 1, "i": 10}
    assert [e.is_prefill for e in out.scheduled] == [False, False, False, True]  # decodes stand first
    assert {s.request_id for s in out.scheduled_out} == {"b3", "b4", "b5"}
    assert not out.preempted
    assert names(sim.step()) == ["i", "b0", "b1", "b2"]
    sim.run()


def test_an_interactive_prompt_gets_the_whole_budget() -> None:
    sim = simulation(max_num_batched_tokens=32, background_tokens=8)
    for i in range(4):
        background(sim, f"b{i}", 4, i, 30)
    sim.step()
    sim.add("i", prompt(100, 9), params(2))
    assert [tokens_of(sim.step()) for _ in range(3)] == [{"i": 32}] * 3
    assert tokens_of(sim.step()) == {"i": 4, "b0": 1, "b1": 1, "b2": 1, "b3": 1}
    sim.run()


def test_short_of_slots_the_cheapest_gives_way() -> None:
    sim = simulation(max_num_seqs=3, max_num_batched_tokens=64)
    for i, length in enumerate((30, 5, 20)):
        background(sim, f"b{i}", length, i, 30)
    sim.step()
    sim.add("i", prompt(4, 9), params(4))
    out = sim.step()
    assert [s.request_id for s in out.preempted] == ["b1"]
    assert "i" in names(out)
    sim.run()


def test_short_of_blocks_as_many_as_needed_give_way() -> None:
    sim = simulation(num_blocks=15, block_size=4, max_num_batched_tokens=64, max_model_len=48)
    for i in range(3):
        background(sim, f"b{i}", 13, i, 30)  # four blocks each
    assert len(sim.step().admitted) == 3
    sim.add("i", prompt(31, 9), params(1))  # eight
    out = sim.step()
    assert len(out.preempted) == 2
    assert tokens_of(out)["i"] == 31
    sim.run()


def test_nobody_gives_way_in_vain() -> None:
    """While interactive requests hold the rest, displacing would not be enough."""
    sim = simulation(num_blocks=12, block_size=4, max_num_batched_tokens=64, max_model_len=48)
    sim.add("i", prompt(25, 8), params(3))  # seven blocks
    background(sim, "b", 10, 1, 10)
    sim.step()
    sim.add("j", prompt(24, 9), params(1))
    out = sim.step()
    assert not out.preempted
    assert "j" not in names(out)
    assert "b" in names(out)
    sim.run()


def test_it_is_not_admitted_before_an_interactive_request_that_waits_for_room() -> None:
    sim = simulation(num_blocks=12, block_size=4, max_num_batched_tokens=64, max_model_len=48)
    sim.add("i", prompt(25, 8), params(3))
    sim.step()
    sim.add("j", prompt(24, 9), params(1))
    background(sim, "b", 2, 1)
    assert names(sim.step()) == ["i"]
    sim.run()


def test_fcfs_knows_background_work_too() -> None:
    sim = simulation(policy="fcfs", max_num_seqs=1)
    background(sim, "b", 4, 1, 20)
    sim.step()
    sim.add("i", prompt(4, 2), params(3), priority=7, arrival_time=1.0)
    assert names(sim.step()) == ["i"]
    sim.run()


def test_it_neither_fills_the_waiting_queue_nor_is_refused() -> None:
    sim = simulation(max_waiting=2, max_num_seqs=1)
    for i in range(9):
        background(sim, f"b{i}", 4, i)
    for i in range(3):
        sim.add(f"i{i}", prompt(4, i), params(3))
    sim.run()


def test_no_priority_is_less_urgent() -> None:
    with pytest.raises(InvalidRequestError, match="priority"):
        simulation().add("x", prompt(4), params(), priority=BACKGROUND_PRIORITY + 1)


# Any traffic


class Twins:
    """The same interactive requests with and without background work: the same plans, step by step.

    Without a prefix cache, in which the two may find different things.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.both = Simulation(config, random.Random(0))
        self.alone = Simulation(config, random.Random(0))
        self.count = 0

    def add(self, length: int, max_tokens: int, n: int, priority: int) -> None:
        config = self.both.config
        if length + 1 > config.max_seq_len or n > config.max_num_seqs:
            return
        self.count += 1
        arguments = (f"r{self.count}", prompt(length, self.count % 50), params(max_tokens, n=n))
        self.both.add(*arguments, priority=priority)
        if priority != BACKGROUND_PRIORITY:
            self.alone.add(*arguments, priority=priority)

    def step(self) -> None:
        both, alone = self.both.step(), self.alone.step()
        assert self._urgent(both) == self._urgent(alone)

    @staticmethod
    def _urgent(out: SchedulerOutput) -> Any:
        def is_urgent(seq: Any) -> bool:
            return seq.order[0] != BACKGROUND_PRIORITY

        entries = [
            (e.seq.request_id, e.seq.index, e.first_position, e.num_tokens)
            for e in out.scheduled
            if is_urgent(e.seq)
        ]
        groups = (out.admitted, out.resumed, out.preempted, out.scheduled_out)
        moved = [[(s.request_id, s.index) for s in group if is_urgent(s)] for group in groups]
        return entries, moved


@st.composite
def configs(draw: st.DrawFn, caching: bool = False) -> SchedulerConfig:
    max_num_seqs = draw(st.integers(1, 6))
    return SchedulerConfig(
        num_blocks=draw(st.integers(2, 24)),
        block_size=draw(st.sampled_from([1, 2, 8, 16])),
        max_model_len=draw(st.integers(8, 120)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=draw(st.integers(max_num_seqs, 48)),
        enable_prefix_caching=caching,
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 5])),
        background_tokens=draw(st.sampled_from([0, 1, 3, 16])),
        background_chunk=draw(st.sampled_from([1, 7, 64])),
    )


PRIORITIES = st.sampled_from([0, 0, 1, *[BACKGROUND_PRIORITY] * 3])
ACTIONS = st.lists(
    st.one_of(
        st.integers(1, 6),  # steps
        st.tuples(st.integers(1, 60), st.integers(1, 30), st.sampled_from([1, 1, 1, 2]), PRIORITIES),
    ),
    max_size=40,
)


@SETTINGS
@given(config=configs(), actions=ACTIONS)
def test_interactive_requests_are_scheduled_as_if_it_were_not_there(
    config: SchedulerConfig, actions: list[Any]
) -> None:
    twins = Twins(config)
    for action in actions:
        if isinstance(action, tuple):
            twins.add(*action)
        else:
            for _ in range(action):
                twins.step()
    while twins.alone.scheduler.has_unfinished():
        twins.step()
    twins.alone.run()
    twins.both.run()  # all of it comes to its end, with the right answers and nothing lost


@SETTINGS
@given(config=configs(caching=True), actions=ACTIONS, seed=st.integers(0, 99))
def test_any_mix_with_a_prefix_cache(config: SchedulerConfig, actions: list[Any], seed: int) -> None:
    """Shared prefixes, several samples, leavers: each answer as alone, every block accounted for."""
    rng = random.Random(seed)
    sim = Simulation(config, rng)
    stem = [rng.randint(2, 3) for _ in range(60)]
    for i, action in enumerate(actions):
        if isinstance(action, int):
            for _ in range(action):
                sim.step()
            if sim.scheduler.requests and rng.random() < 0.2:
                sim.abort(rng.choice(sorted(sim.scheduler.requests)))
            continue
        length, max_tokens, n, priority = action
        tokens = [*stem[: rng.randint(0, length)], *([4 + i] * 60)][:length]
        if length + 1 <= config.max_seq_len and n <= config.max_num_seqs:
            sim.add(f"r{i}", tokens, params(max_tokens, n=n), priority=priority)
    sim.run()


def test_dense_mixes_come_upon_every_situation() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        rng = random.Random(seed)
        config = SchedulerConfig(
            num_blocks=rng.randint(8, 20),
            block_size=4,
            max_model_len=32,
            max_num_seqs=rng.randint(2, 5),
            max_num_batched_tokens=rng.randint(8, 24),
            background_tokens=rng.choice([1, 2, 6]),
        )
        sim = Simulation(config, rng)
        for i in range(20):
            priority = rng.choice([0, BACKGROUND_PRIORITY])
            sim.add(f"r{i}", prompt(rng.randint(1, 20), i), params(rng.randint(1, 10)), priority=priority)
            for _ in range(rng.randint(0, 4)):
                out = sim.step()
                came = bool(out.admitted or out.resumed)
                seen["displaced by an admission"] += bool(out.preempted) and came
                seen["displaced by a decode"] += bool(out.preempted) and not came
                seen["stood still"] += any(s.order[0] == BACKGROUND_PRIORITY for s in out.scheduled_out)
                seen["beside"] += len({e.seq.order[0] for e in out.scheduled}) == 2
        sim.run()
    assert all(seen.values()), seen
    assert len(seen) == 4


@pytest.mark.parametrize("depth", [1, 2])
def test_two_steps_in_flight(depth: int) -> None:
    """Displaced while its step runs: the token that arrives late is taken in."""
    for seed in range(40):
        rng = random.Random(seed)
        config = SchedulerConfig(
            num_blocks=rng.randint(10, 24),
            block_size=4,
            max_model_len=40,
            max_num_seqs=4,
            max_num_batched_tokens=rng.randint(6, 24),
            background_tokens=rng.choice([1, 2, 6]),
        )
        harness = Bench(config, rng, depth)
        for i in range(16):
            some = SamplingParams(max_tokens=rng.randint(1, 10), ignore_eos=True, n=rng.choice([1, 1, 2]))
            priority = rng.choice([0, BACKGROUND_PRIORITY])
            harness.add(f"r{i}", prompt(rng.randint(1, 20), i), some, priority=priority)
            for _ in range(rng.randint(0, 3)):
                harness.step()
        harness.run()


def test_the_same_order_of_queues() -> None:
    """Background requests among each other: first come, first served."""
    scheduler = Scheduler(SchedulerConfig(num_blocks=64, max_model_len=64, max_num_seqs=2))
    for i in range(4):
        request = EngineRequest(f"b{i}", prompt(4, i), params(2), float(i), BACKGROUND_PRIORITY)
        scheduler.add_request(request)
    assert names(scheduler.schedule()) == ["b0", "b1"]
