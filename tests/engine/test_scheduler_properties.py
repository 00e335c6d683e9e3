"""Random traffic against the simulator: every answer as alone, every block accounted for."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

sys.path.insert(0, str(Path(__file__).parent))
from simulator import EOS, EVENTS, STOP, Simulation

from inferx.engine.config import SchedulerConfig
from inferx.errors import InvalidRequestError
from inferx.sampling_params import SamplingParams
from inferx.structured_outputs import StructuredOutputsParams

SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=150,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
)


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    block_size = draw(st.sampled_from([1, 2, 8, 16, 32]))
    max_num_seqs = draw(st.integers(1, 8))
    return SchedulerConfig(
        num_blocks=draw(st.integers(2, 24)),
        block_size=block_size,
        max_model_len=draw(st.integers(8, 160)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=draw(st.integers(max_num_seqs, 64)),
        enable_prefix_caching=draw(st.sampled_from([True, True, True, False])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 0, 1, 7])),
        policy=draw(st.sampled_from(["priority", "fcfs"])),
    )


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.one_of(st.none(), st.integers(1, 40)))
    return SamplingParams(
        n=draw(st.sampled_from([1, 1, 1, 2, 3, 5])),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, min(5, max_tokens or 5))),
        ignore_eos=draw(st.booleans()),
        eos_token_ids=[EOS],
        stop_token_ids=draw(st.sampled_from([[], [STOP]])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
        structured_outputs=draw(st.sampled_from([None, GRAMMAR])),
    )


# Whose sequences grow by several tokens at once; what it says does not matter here.
GRAMMAR = StructuredOutputsParams(json_object=True)

# Prompts are made of few pieces, so that they share prefixes that end anywhere in a block.
PROMPTS = st.lists(
    st.tuples(st.integers(2, 3), st.sampled_from([1, 3, 8, 15, 16, 40])), min_size=1, max_size=4
).map(lambda pieces: [token for token, times in pieces for _ in range(times)])


class Traffic(RuleBasedStateMachine):
    """Requests come, steps pass, clients leave at every possible moment."""

    sim: Simulation

    @initialize(config=configs(), seed=st.integers(0, 1000))
    def start(self, config: SchedulerConfig, seed: int) -> None:
        self.sim = Simulation(config, random.Random(seed))

    @rule(
        prompt=PROMPTS,
        params=sampling_params(),
        priority=st.sampled_from([0, 0, 0, -1, 2]),
        salt=st.sampled_from([None, None, None, "a", "b"]),
        adapter=st.sampled_from([None, None, None, "a"]),
        prefix_key=st.sampled_from([None, None, None, "a"]),
    )
    def add(
        self,
        prompt: list[int],
        params: SamplingParams,
        priority: int,
        salt: str | None,
        adapter: str | None,
        prefix_key: str | None,
    ) -> None:
        name = f"r{len(self.sim.jobs)}"
        config = self.sim.config
        fits = len(prompt) + 1 <= config.max_seq_len and params.n <= config.max_num_seqs
        if not fits:
            with pytest.raises(InvalidRequestError):
                self.sim.add(name, prompt, params)
            return
        self.sim.add(
            name, prompt, params, priority=priority, salt=salt, adapter=adapter, prefix_key=prefix_key
        )

    def _job(self, data: st.DataObject) -> str:
        alive = sorted(self.sim.scheduler.requests)
        assume(alive)
        return data.draw(st.sampled_from(alive))

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.sim.abort(self._job(data))

    @rule(data=st.data(), index=st.integers(0, 4))
    def finish_one(self, data: st.DataObject, index: int) -> None:
        self.sim.finish(self._job(data), index)

    @rule(times=st.integers(1, 12))
    def steps(self, times: int) -> None:
        for _ in range(times):
            self.sim.step()

    @precondition(lambda self: self.sim.scheduler.has_unfinished())
    @rule(data=st.data(), before=st.booleans(), whole=st.booleans(), index=st.integers(0, 4))
    def step_with_leaver(self, data: st.DataObject, before: bool, whole: bool, index: int) -> None:
        """A client leaves between schedule and update, before or after the forward pass."""
        out = self.sim.plan()
        name = self._job(data)
        results = None if before else self.sim.forward(out)
        if whole:
            self.sim.abort(name)
        else:
            self.sim.finish(name, index)
        self.sim.finish_step(out, self.sim.forward(out) if results is None else results)

    @precondition(lambda self: self.sim.scheduler.has_unfinished())
    @rule()
    def step_with_error(self) -> None:
        out = self.sim.plan()
        results = self.sim.forward(out)
        if results:
            self.sim.spoil(out, results)
        self.sim.finish_step(out, results)

    def teardown(self) -> None:
        if hasattr(self, "sim"):
            self.sim.run()


def random_params(rng: random.Random) -> SamplingParams:
    max_tokens = rng.choice([None, 1, rng.randint(2, 40)])
    return SamplingParams(
        n=rng.choice([1, 1, 1, 2, 4]),
        max_tokens=max_tokens,
        min_tokens=rng.randint(0, min(5, max_tokens or 5)),
        ignore_eos=rng.random() < 0.7,
        eos_token_ids=[EOS],
        stop_token_ids=rng.choice([[], [STOP]]),
        prompt_logprobs=rng.choice([None, None, None, 0]),
    )


def crowd(seed: int, seen: Counter[str]) -> None:
    """One dense mix: a pool that is too small for its requests.  Counts in ``seen`` what came up."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 1, 2, 8, 8, 16, 16, 32])
    longest = rng.randint(2 * block_size + 2, 6 * block_size + 40)
    max_num_seqs = rng.randint(2, 12)
    config = SchedulerConfig(
        num_blocks=-(-longest // block_size) * rng.choice([1, 1, 2, 3]) + rng.randint(0, 3),
        block_size=block_size,
        max_model_len=longest,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs + rng.choice([0, rng.randint(0, 8), rng.randint(0, 50)]),
        long_prefill_token_threshold=rng.choice([0, 0, 0, 5]),
    )
    sim = Simulation(config, rng)
    limit = min(config.max_seq_len - 1, 100)
    stem = [rng.randint(2, 9) for _ in range(limit)]
    for i in range(rng.randint(5, 25)):
        shared = rng.randint(0, limit)
        prompt = (stem[:shared] + [rng.randint(2, 3) for _ in range(rng.randint(1, 20))])[:limit]
        params = random_params(rng)
        params.n = min(params.n, max_num_seqs)
        params.structured_outputs = rng.choice([None, GRAMMAR])
        sim.add(
            f"r{i}",
            prompt,
            params,
            priority=rng.choice([0, 0, 0, 1]),
            salt=rng.choice([None, None, None, "a"]),
            arrival_time=rng.choice([0.0, 1.0]),
        )
        for _ in range(rng.choice([0, 0, 1, 5])):
            if sim.scheduler.has_unfinished():
                seen.update(sim.step_events())
    while sim.scheduler.has_unfinished():
        seen.update(sim.step_events())
        if rng.random() < 0.02:
            sim.abort(rng.choice(sorted(sim.jobs)))
    sim.run()


def test_crowds() -> None:
    """Many dense mixes; and each situation worth testing did come up, or the test is worth little."""
    seen: Counter[str] = Counter()
    for seed in range(150):
        try:
            crowd(seed, seen)
        except BaseException:
            print(f"seed {seed}")
            raise
    missing = [name for name in EVENTS if not seen[name]]
    assert not missing, f"not in {dict(seen)}"


TestTraffic = Traffic.TestCase
TestTraffic.settings = SETTINGS
