"""Random traffic with two steps in flight, on a device that is late: every answer as alone, nothing leaks.

Depth 1 runs through the same machine: the answers are the same because both equal ``solo``.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

sys.path.insert(0, str(Path(__file__).parent))
from overlap_harness import Bench
from simulator import EOS, STOP
from test_scheduler_properties import GRAMMAR, PROMPTS, configs, random_params

from inferx.engine.config import SchedulerConfig
from inferx.sampling_params import SamplingParams

SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=80,
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
)
INTERRUPTS = ("before launch", "after launch", "before results", "after results")
EVENTS = (
    "planned ahead",
    "token gathered on the device",
    "wasted",
    "ending",
    "forking",
    "empty plan",
    "slot of an ending one used",
    "two steps with copies",
    "preempted with a token on its way",
    "preempted with its last token on its way",
    "preempted in a chunk that runs",
    "preempted before its fork",
    "result taken in late",
    "skipped, to resample",
    "ran on junk behind a failed step",
    "interrupted",
    "history known",
    "several tokens at once",
    "nothing but grammars to wait for",
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
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.0, 0.0, 1.0])),
        prompt_logprobs=draw(st.sampled_from([None, None, None, 0])),
        structured_outputs=draw(st.sampled_from([None, None, GRAMMAR])),
    )


class LateDevice(RuleBasedStateMachine):
    """Requests come, fail and leave at any moment; the device runs what was launched when it likes."""

    bench: Bench

    @initialize(config=configs(), seed=st.integers(0, 1000), depth=st.sampled_from([2, 2, 2, 1]))
    def start(self, config: SchedulerConfig, seed: int, depth: int) -> None:
        self.bench = Bench(config, random.Random(seed), depth)

    @rule(
        prompt=PROMPTS,
        params=sampling_params(),
        priority=st.sampled_from([0, 0, 0, -1, 2]),
        salt=st.sampled_from([None, None, None, "a"]),
        fault=st.sampled_from([None, None, None, None, "launch", "results", "sample"]),
        at=st.integers(0, 60),
    )
    def add(
        self,
        prompt: list[int],
        params: SamplingParams,
        priority: int,
        salt: str | None,
        fault: str | None,
        at: int,
    ) -> None:
        bench, config = self.bench, self.bench.config
        assume(len(prompt) + 1 <= config.max_seq_len and params.n <= config.max_num_seqs)
        name = f"r{len(bench.requests)}"
        if fault == "sample":
            bench.device.spoilt.add((name, at % params.n, at // 4))
        elif fault is not None:
            bench.device.broken[name] = (fault, at)
        bench.add(name, prompt, params, priority=priority, salt=salt)

    def _job(self, data: st.DataObject) -> str:
        alive = sorted(self.bench.scheduler.requests)
        assume(alive)
        return data.draw(st.sampled_from(alive))

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.bench.abort(self._job(data))

    @rule(data=st.data(), index=st.integers(0, 4))
    def finish_one(self, data: st.DataObject, index: int) -> None:
        self.bench.finish(self._job(data), index)

    @rule(times=st.integers(1, 12), late=st.booleans())
    def steps(self, times: int, late: bool) -> None:
        for _ in range(times):
            self.bench.step()
            if not late:
                self.bench.device.run_all()

    @rule()
    def the_device_runs_a_step(self) -> None:
        if self.bench.device.queue:
            self.bench.device.run_next()

    @rule(where=st.sampled_from(INTERRUPTS))
    def interrupt(self, where: str) -> None:
        self.bench.device.interrupt = where
        self.bench.step()

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.bench.device.interrupt = None
            self.bench.run()


def crowd(seed: int, seen: Counter[str], depth: int = 2) -> Bench:
    """One dense mix: a pool that is too small for its requests.  Counts in ``seen`` what came up."""
    rng = random.Random(seed)
    block_size = rng.choice([1, 1, 2, 8, 8, 16])
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
    bench = Bench(config, random.Random(seed), depth)
    stems = [[rng.randrange(9) for _ in range(rng.randint(1, longest))] for _ in range(3)]
    calm = rng.random() < 0.3
    grammars = random.Random(f"grammars {seed}")
    for i in range(rng.randint(4, 25)):
        cut = rng.randint(1, longest - 2)
        prompt = (rng.choice(stems)[:cut] + [rng.randrange(9) for _ in range(rng.randint(1, 6))])[
            : longest - 1
        ]
        params = random_params(rng)
        params.presence_penalty = rng.choice([0.0] * 12 + [1.0])
        params.structured_outputs = grammars.choice([None] * 9 + [GRAMMAR])
        if params.n > max_num_seqs:
            continue
        name = f"r{i}"
        fault = None if calm else rng.choice([None] * 8 + ["launch", "results", "sample"])
        if fault == "sample":
            bench.device.spoilt.add((name, 0, rng.randint(0, 10)))
        elif fault is not None:
            bench.device.broken[name] = (fault, rng.randint(0, longest))
        bench.add(name, prompt, params, priority=rng.choice([0, 0, 0, 1, -1]))
        for _ in range(rng.choice([0, 0, 1, 5])):
            _step(bench, rng, calm)
    while bench.core.has_work:
        _step(bench, rng, calm)
        if rng.random() < 0.02:
            bench.abort(rng.choice(sorted(bench.requests)))
        if rng.random() < 0.03:
            bench.finish(rng.choice(sorted(bench.requests)), rng.randint(0, 3))
    bench.run()
    seen.update(bench.seen)
    return bench


def _step(bench: Bench, rng: random.Random, calm: bool) -> None:
    if not calm and rng.random() < 0.03:
        bench.device.interrupt = rng.choice(INTERRUPTS)
    while bench.device.queue and rng.random() < 0.3:
        bench.device.run_next()
    bench.step()
    bench.device.interrupt = None


def test_crowds() -> None:
    """Many dense mixes; and each situation worth testing did come up, or the test is worth little."""
    seen: Counter[str] = Counter()
    for seed in range(100):
        try:
            crowd(seed, seen)
        except BaseException:
            print(f"seed {seed}")
            raise
    missing = [name for name in EVENTS if not seen[name]]
    assert not missing, f"not in {dict(seen)}"


TestLateDevice = LateDevice.TestCase
TestLateDevice.settings = SETTINGS
