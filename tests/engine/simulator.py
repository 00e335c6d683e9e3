"""A stand-in for model and KV memory that catches what a scheduler can get wrong.

The "model": a token's K and V is a *slot record* (namespace, token, position, hash of the prefix up to it),
and the next token is a function of the last hash and the sample's index.  So the right answer of every
request is known without a scheduler (``solo``), whatever is batched, chunked, cached, preempted or forked.

The "memory": one record per slot of each block.  Before a position is computed, all positions before it
are read through the block table and must be exactly the request's prefix, written in an earlier step or
by the request itself.  That finds wrong sharing, missing copies and use after free.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from inferx.engine.config import SchedulerConfig
from inferx.engine.protocol import BACKGROUND_PRIORITY, EngineRequest
from inferx.engine.request import Sequence, Status
from inferx.engine.scheduler import SampleError, Scheduler, SchedulerOutput, StepResult
from inferx.engine.token_run import TokenRun
from inferx.sampling_params import SamplingParams

VOCAB = 64
EOS = 0
STOP = 1
# Ends an answer that follows a grammar.
COMPLETE = 2
MASK = 2**64 - 1

EVENTS = (
    "preempted",
    "preempted in the middle of its prompt",
    "resumed",
    "resumed with its blocks still cached",
    "waited for a shared prefix",
    "left out for lack of budget",
    "chunk",
    "forked",
    "full blocks found",
    "partly matching block copied",
    "copied on write",
    "evicted",
    "cached block referenced again",
    "equal blocks side by side",
)

Record = tuple[object, int, int, int]


def is_background(seq: Sequence) -> bool:
    return seq.order[0] == BACKGROUND_PRIORITY


def mix(h: int, value: int) -> int:
    h = ((h ^ value) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & MASK
    return h ^ (h >> 29)


def next_token(h: int, index: int) -> int:
    return (mix(h, 1000 + index) >> 7) % VOCAB


def forced_run(h: int, index: int, more: int) -> TokenRun:
    """The next token, and up to ``more`` that a grammar forces behind it: which are those that would come
    anyway, so that the answer does not depend on how many come at once."""
    tokens = [next_token(h, index)]
    while len(tokens) <= more and tokens[-1] != COMPLETE:
        h = mix(h, tokens[-1])
        tokens.append(next_token(h, index))
    return TokenRun(tokens, tokens[-1] == COMPLETE)


def namespace_of(request: EngineRequest, prefix_key: str | None, adapter: str | None) -> object:
    return (("salt", request.cache_salt), ("model", prefix_key), ("adapter", adapter))


def start_hash(namespace: object) -> int:
    h = 1
    for c in repr(namespace):
        h = mix(h, ord(c))
    return h


def solo(
    request: EngineRequest, namespace: object, index: int, max_seq_len: int
) -> tuple[list[int], str, int | None]:
    """The right answer: (output tokens, finish reason, stop reason)."""
    params = request.sampling_params
    follows = params.structured_outputs is not None
    h = start_hash(namespace)
    for t in request.prompt_token_ids:
        h = mix(h, t)
    out: list[int] = []
    while True:
        token = next_token(h, index)
        h = mix(h, token)
        out.append(token)
        if len(out) >= params.min_tokens:
            if not params.ignore_eos and token in params.eos_token_ids:
                return out, "stop", None
            if token in params.stop_token_ids:
                return out, "stop", token
        if follows and token == COMPLETE:
            return out, "stop", None
        if len(out) == params.max_tokens or len(request.prompt_token_ids) + len(out) == max_seq_len:
            return out, "length", None


class FakeMemory:
    """num_blocks blocks of slot records."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.blocks: list[list[Record | None]] = [[None] * block_size for _ in range(num_blocks)]

    def copy(self, copies: list[tuple[int, int]]) -> None:
        """All at once, as the block-copy kernel does: no copy may depend on another."""
        sources = [s for s, _ in copies]
        targets = [t for _, t in copies]
        assert len(set(targets)) == len(targets), f"a block is copied to twice: {copies}"
        assert not set(sources) & set(targets), f"a block is both source and target: {copies}"
        for target, content in [(t, self.blocks[s][:]) for s, t in copies]:
            self.blocks[target] = content


@dataclass
class Job:
    """What the simulator remembers of a request it sent."""

    request: EngineRequest
    namespace: object
    sequences: list[Sequence]
    cut: dict[int, str]  # index -> reason, for samples that we ended ourselves


class Simulation:
    """Drives a scheduler, checking every step.  ``rng`` only varies what may not matter."""

    def __init__(self, config: SchedulerConfig, rng: random.Random) -> None:
        self.config = config
        self.rng = rng
        self.scheduler = Scheduler(config)
        self.memory = FakeMemory(config.num_blocks, config.block_size)
        self.jobs: dict[str, Job] = {}
        self.records: dict[int, list[Record]] = {}  # id of sequence -> records of its known tokens
        self.hold: list[Sequence] = []  # keeps ids from being used again
        self.next_computed: dict[int, int] = {}  # id of sequence -> position it goes on from
        self.num_steps = 0
        self.run_lengths: Counter[int] = Counter()  # tokens that came at once
        self.reasons: dict[tuple[str, int], tuple[str, int | None]] = {}

    # Requests

    def add(
        self,
        request_id: str,
        prompt: list[int],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        salt: str | None = None,
        prefix_key: str | None = None,
        adapter: str | None = None,
        arrival_time: float = 0.0,
    ) -> Job:
        params = params or SamplingParams(max_tokens=8, ignore_eos=True)
        request = EngineRequest(request_id, prompt, params, arrival_time, priority, salt)
        added = self.scheduler.add_request(request, prefix_key, adapter)
        job = Job(request, namespace_of(request, prefix_key, adapter), added.sequences, {})
        self.jobs[request_id] = job
        self.hold += added.sequences
        self.scheduler.check_invariants()
        return job

    def abort(self, request_id: str) -> None:
        for seq in self.scheduler.abort(request_id):
            self.jobs[request_id].cut[seq.index] = "abort"
        self.scheduler.check_invariants()

    def finish(self, request_id: str, index: int) -> None:
        if self.scheduler.finish(request_id, index, "stop") is not None:
            self.jobs[request_id].cut[index] = "stop"
        self.scheduler.check_invariants()

    # Steps

    def plan(self) -> SchedulerOutput:
        """schedule(), and everything that must hold of its answer."""
        scheduler, config = self.scheduler, self.config
        ready = [
            s for s in scheduler.running if s.num_output_tokens and s.num_computed_tokens == s.num_tokens - 1
        ]
        out = scheduler.schedule()
        scheduler.check_invariants()
        entries = {id(e.seq): e for e in out.scheduled}
        assert len(entries) == len(out.scheduled), "a sequence is scheduled twice"
        assert (
            sum(e.num_tokens for e in out.scheduled) == out.total_num_tokens <= config.max_num_batched_tokens
        )
        assert {id(s) for s in scheduler.running} == entries.keys() | {id(s) for s in out.scheduled_out}
        assert not entries.keys() & {id(s) for s in out.scheduled_out}
        assert len(scheduler.running) <= config.max_num_seqs
        urgent = [s for s in (*scheduler.running, *scheduler.waiting) if not is_background(s)]
        if scheduler.has_unfinished():
            assert out.total_num_tokens > 0, "no progress"
            first = scheduler.running[0]
            waits = is_background(first) and urgent
            assert id(first) in entries or waits, "the first in order was left out"
        for seq in ready:
            if not is_background(seq) or not urgent:
                assert id(seq) in entries or seq in out.preempted, f"{seq} was ready to decode and left out"
        came = (*out.admitted, *out.resumed)
        assert not (out.preempted and any(map(is_background, came)))
        assert not came or all(map(is_background, out.preempted))
        if urgent:
            tokens = sum(e.num_tokens for e in out.scheduled if is_background(e.seq))
            assert tokens <= config.background_tokens, "background work takes more than its share"
        for i, e in enumerate(out.scheduled):
            assert e.num_tokens > 0
            assert e.first_position == e.seq.num_computed_tokens
            assert bool(e.samples) == (e.first_position + e.num_tokens == e.seq.num_tokens)
            assert (i < out.num_decodes) <= (not e.is_prefill)
            if e.is_prefill and config.long_prefill_token_threshold:
                assert e.num_tokens <= config.long_prefill_token_threshold
        for seq in (*out.admitted, *out.resumed):
            assert id(seq) in entries, f"{seq} was admitted for nothing"
            assert id(seq) not in self.next_computed or seq in out.resumed
            self.next_computed[id(seq)] = seq.num_computed_tokens
            if seq.request.engine_request.sampling_params.prompt_logprobs is not None:
                assert seq.num_computed_tokens == 0 or seq.num_output_tokens, "prompt logits would be missing"
        return out

    def forward(self, out: SchedulerOutput) -> list[StepResult]:
        """Compute the planned tokens, in an arbitrary order of requests, and sample."""
        self.memory.copy(out.block_copies)
        written: dict[tuple[int, int], int] = {}
        for e in self.rng.sample(out.scheduled, len(out.scheduled)):
            size = self.config.block_size
            known = self._records(e.seq)
            for i in range(0, e.first_position, size):
                n = min(size, e.first_position - i)
                block = e.block_table[i // size]
                assert self.memory.blocks[block][:n] == known[i : i + n], f"{e.seq} reads another's K and V"
                assert all((block, o) not in written for o in range(n)), f"{e.seq} reads what is just written"
            for p in range(e.first_position, e.first_position + e.num_tokens):
                slot = e.block_table[p // size], p % size
                assert slot not in written, f"{e.seq} and another sequence write the same slot"
                written[slot] = p
                self.memory.blocks[slot[0]][slot[1]] = known[p]
        return [self._sample(s) for s in out.samples]

    def _sample(self, seq: Sequence) -> StepResult:
        h = self._records(seq)[-1][3]
        if seq.request.engine_request.sampling_params.structured_outputs is None:
            return next_token(h, seq.index)
        # The sampled token alone as often as with some, or many, behind it.
        return forced_run(h, seq.index, self.rng.choice([0, 0, 1, 3, self.rng.randint(1, 40)]))

    def spoil(self, out: SchedulerOutput, results: list[StepResult]) -> None:
        """Let one random sample fail."""
        i = self.rng.randrange(len(results))
        seq = out.samples[i]
        if not seq.finished:
            results[i] = SampleError("spoilt")
            self.jobs[seq.request_id].cut[seq.index] = "error"

    def finish_step(self, out: SchedulerOutput, results: list[StepResult]) -> None:
        for u in self.scheduler.update(out, results):
            if u.token_id is not None:
                tokens = [u.token_id, *u.forced]
                assert u.seq.output_token_ids[-len(tokens) :] == tokens
                self.run_lengths[len(tokens)] += 1
            if u.finish_reason is not None:
                assert u.seq.finish_reason == u.finish_reason
                self.reasons[u.seq.request_id, u.seq.index] = (u.finish_reason, u.stop_reason)
        self.num_steps += 1
        self.scheduler.check_invariants()

    def step(self) -> SchedulerOutput:
        out = self.plan()
        self.finish_step(out, self.forward(out))
        return out

    def step_events(self) -> Counter[str]:
        """``step``, and which of EVENTS happened in it."""
        s, kv = self.scheduler, self.scheduler.kv
        cached = set(kv.pool.evictable_blocks())
        known = set(kv.cache._nodes)
        out = self.plan()
        seen: Counter[str] = Counter()
        seen["preempted"] = len(out.preempted)
        seen["preempted in the middle of its prompt"] = sum(not x.num_output_tokens for x in out.preempted)
        seen["resumed"] = len(out.resumed)
        seen["resumed with its blocks still cached"] = sum(x.num_computed_tokens > 0 for x in out.resumed)
        seen["waited for a shared prefix"] = sum(x.num_awaited_blocks > 0 for x in s.waiting)
        seen["left out for lack of budget"] = len(out.scheduled_out)
        seen["chunk"] = sum(not e.samples for e in out.scheduled)
        seen["forked"] = sum(len(e.samples) > 1 for e in out.scheduled)
        new = {id(x) for x in (*out.admitted, *out.resumed)}
        fresh = [e for e in out.scheduled if id(e.seq) in new]
        seen["full blocks found"] = sum(e.first_position >= self.config.block_size for e in fresh)
        seen["partly matching block copied"] = sum(
            e.first_position % self.config.block_size > 0 for e in fresh
        )
        seen["copied on write"] = len(out.block_copies) - seen["partly matching block copied"]
        seen["evicted"] = len(known - set(kv.cache._nodes))
        seen["cached block referenced again"] = len(
            cached & {b for e in fresh for b in e.block_table[: e.first_position // self.config.block_size]}
        )
        results = self.forward(out)
        if results and self.rng.random() < 0.01:
            self.spoil(out, results)
        self.finish_step(out, results)
        seen["equal blocks side by side"] = sum(len(n.blocks) > 1 for n in kv.cache._nodes.values())
        return seen

    def run(self, max_steps: int = 10_000) -> None:
        """Until nothing is left, then check every answer and that nothing leaked."""
        while self.scheduler.has_unfinished():
            assert self.num_steps < max_steps, "it does not come to an end"
            self.step()
        self.check_idle()
        self.check_answers()

    def check_idle(self) -> None:
        s = self.scheduler
        stats = s.stats()
        assert not s.running
        assert not s.waiting
        assert stats.num_free_blocks == stats.num_blocks
        assert stats.kv_cache_usage == 0
        assert set(s.kv.pool.ref_counts) == {0}
        assert not s.kv._claims
        assert not s.kv._pins
        assert not s.kv._copies

    def check_answers(self) -> None:
        for request_id, job in self.jobs.items():
            for seq in job.sequences:
                assert seq.status is Status.FINISHED
                tokens, reason, stop = solo(job.request, job.namespace, seq.index, self.config.max_seq_len)
                if seq.index in job.cut:
                    assert seq.finish_reason == job.cut[seq.index]
                    assert seq.output_token_ids == tokens[: seq.num_output_tokens]
                else:
                    assert seq.output_token_ids == tokens, f"{seq} has another answer than alone"
                    assert self.reasons[request_id, seq.index] == (reason, stop)

    def _records(self, seq: Sequence) -> list[Record]:
        namespace = self.jobs[seq.request_id].namespace
        known = self.records.setdefault(id(seq), [])
        h = known[-1][3] if known else start_hash(namespace)
        for p in range(len(known), seq.num_tokens):
            h = mix(h, seq.token_ids[p])
            known.append((namespace, seq.token_ids[p], p, h))
        return known


# Short ways to say things in tests


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
