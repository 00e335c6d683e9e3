"""An ``EngineCore`` over a ``FakeDevice``: drives it, checks each plan and every answer."""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from fake_device import FakeDevice
from scripted_grammars import ScriptedGrammars
from simulator import is_background, namespace_of, solo

from inferx.engine.args import EngineArgs
from inferx.engine.config import SchedulerConfig
from inferx.engine.core import EngineCore
from inferx.engine.protocol import EngineOutput, EngineRequest, RequestMetrics
from inferx.engine.request import Sequence, Status
from inferx.engine.scheduler import Scheduler, SchedulerOutput
from inferx.sampling_params import SamplingParams

PARTS = (
    "queue_time",
    "prefill_time",
    "decode_time",
    "stall_preempted_time",
    "stall_recompute_time",
    "stall_scheduled_out_time",
)


class CheckedScheduler(Scheduler):
    """Checks what must hold of a plan, with up to two steps in flight, and the books after every call."""

    seen: Counter[str]
    allowed_waste = 1
    wasted: Counter[int]  # id of sequence -> steps computed for nothing after its end

    def schedule(self) -> SchedulerOutput:
        seen, before = self.seen, list(self._in_flight)
        held = self.kv.has_pins
        out = super().schedule()
        self.check_invariants()
        entries = {id(e.seq): e for e in out.scheduled}
        groups = [list(entries), *([id(s) for s in g] for g in (out.scheduled_out, out.ending, out.forking))]
        everyone = [i for group in groups for i in group]
        assert sorted(everyone) == sorted(map(id, self.running)), "not each running sequence in one group"
        budget = self.config.max_num_batched_tokens
        assert sum(e.num_tokens for e in out.scheduled) == out.total_num_tokens <= budget
        assert sum(s.request.num_slots(s) for s in self.running if s not in out.ending) <= (
            self.config.max_num_seqs
        )
        samples = before[0].samples if before else []
        for e in out.scheduled:
            seq = e.seq
            assert seq.finish_reason is None or not seq.request.forked
            assert e.num_tokens > 0
            assert e.first_position == seq.num_computed_tokens
            assert bool(e.samples) == (e.first_position + e.num_tokens == seq.num_tokens)
            assert seq.num_output_tokens < seq.request.max_output_tokens, "planned beyond the last token"
            assert (e.token_source is not None) == (seq in samples and seq.request.forked)
            if e.token_source is not None:
                assert samples[e.token_source] is seq
                assert e.num_tokens == 1
        for seq in out.scheduled_out:
            ready = seq.num_tokens - seq.num_computed_tokens == 1 and seq.num_output_tokens
            assert not ready or held or is_background(seq), "ready to decode and left out"
        if not before and self.has_unfinished():
            assert out.scheduled, "no progress"
        if before:
            seen["planned ahead"] += 1
            seen["preempted with a token on its way"] += sum(
                s.token_source is not None for s in out.preempted
            )
            seen["preempted with its last token on its way"] += sum(s.is_ending for s in out.preempted)
            seen["preempted in a chunk that runs"] += sum(
                any(e.seq is s and not e.samples for e in before[0].scheduled) for s in out.preempted
            )
            seen["preempted before its fork"] += sum(
                not s.request.forked and any(e.seq is s and e.samples for e in before[0].scheduled)
                for s in out.preempted
            )
            seen["ending"] += len(out.ending)
            seen["forking"] += len(out.forking)
            seen["empty plan"] += not out.scheduled
            seen["two steps with copies"] += bool(before[0].block_copies and out.block_copies)
            seen["slot of an ending one used"] += len(self.running) > self.config.max_num_seqs
        return out

    def update(self, output: SchedulerOutput, results: list[Any]) -> list[Any]:
        for e in output.scheduled:
            if e.seq.status is Status.FINISHED:
                self.wasted[id(e.seq)] += 1
                # Not wasted: the step it failed in, and one that Ctrl-C left to be run again (without it).
                more = (e.seq.finish_reason == "error") + bool(self.seen["interrupted"])
                assert self.wasted[id(e.seq)] <= self.allowed_waste + more, f"{e.seq} wastes a second step"
                self.seen["wasted"] += 1
            elif e.seq.status is Status.PREEMPTED and e.samples:
                place = output.samples.index(e.samples[0])
                self.seen[
                    "result taken in late" if results[place] is not None else "skipped, to resample"
                ] += 1
        updates = super().update(output, results)
        self.check_invariants()
        return updates


class Bench:
    """The engine, its device, and what was sent and heard."""

    def __init__(self, config: SchedulerConfig, rng: random.Random, depth: int = 2) -> None:
        self.config = config
        self.rng = rng
        self.device = FakeDevice(config.num_blocks, config.block_size, rng, depth)
        loaded: Any = SimpleNamespace(
            checkpoint=None,
            tokenizer=None,
            model=SimpleNamespace(prefix_cache_key=lambda length: None),
            info=SimpleNamespace(total_parameters=2, active_parameters=1),
            scheduler_config=config,
        )
        self.core = EngineCore(loaded, EngineArgs(seed=0), runner=self.device)
        self.seen = self.device.seen
        self.now = 0.0
        self.core.clock = self._clock
        self.device.on_run = self._run_for_a_second
        self.core.scheduler = self.scheduler = CheckedScheduler(config)
        self.scheduler.seen, self.scheduler.wasted = self.seen, Counter()
        self.requests: dict[str, EngineRequest] = {}
        grammars: Any = ScriptedGrammars(self.device, self.requests, random.Random(0))
        self.core._structured = grammars
        self.hold: list[Sequence] = []  # keeps ids of sequences from being used again
        self.heard: dict[tuple[str, int], list[EngineOutput]] = defaultdict(list)
        self.cut: dict[tuple[str, int], str] = {}  # ended by us, or by a fault
        self.metrics: list[RequestMetrics] = []
        self.num_steps = 0

    def _clock(self) -> float:
        self.now += 1 / 1024  # binary fractions: sums are exact
        return self.now

    def _run_for_a_second(self) -> None:
        self.now += 1

    def add(
        self,
        name: str,
        prompt: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        salt: str | None = None,
    ) -> None:
        request = EngineRequest(name, prompt, params, self.now, priority, salt)
        self.requests[name] = request
        self.core.add_request(request)
        self.hold += self.scheduler.requests[name].sequences
        self.scheduler.check_invariants()

    def abort(self, name: str) -> None:
        request = self.scheduler.requests.get(name)
        for seq in request.live_sequences() if request else []:
            self.cut[name, seq.index] = "abort"
        self.core.abort(name)
        self.scheduler.check_invariants()

    def finish(self, name: str, index: int) -> None:
        for output in self.core.finish_sample(name, index):
            self.cut[name, index] = "stop"
            self._hear(output)
        self.scheduler.check_invariants()

    def step(self) -> list[EngineOutput]:
        self.num_steps += 1
        try:
            outputs = self.core.step()
        except KeyboardInterrupt:
            outputs = []
        self.scheduler.check_invariants()
        assert len(self.core._steps) < self.device.steps_in_flight or self.device.interrupt is None
        for output in outputs:
            self._hear(output)
        return outputs

    def _hear(self, output: EngineOutput) -> None:
        key = (output.request_id, output.index)
        assert not self.heard[key] or self.heard[key][-1].finish_reason is None, "heard after the end"
        self.heard[key].append(output)
        m = output.metrics
        if m is not None:
            self.metrics.append(m)
            if self.answer(*key):
                known = m.num_cached_tokens + m.num_computed_prompt_tokens
                # After a preemption, another request may have computed the rest meanwhile.
                assert known == m.num_prompt_tokens or (m.num_preemptions and known < m.num_prompt_tokens)

    def run(self, max_steps: int = 5000) -> None:
        """To the end; then nothing is left, and every answer is the right one."""
        for _ in range(max_steps):
            if not self.core.has_work:
                break
            self.step()
        else:
            raise AssertionError("it does not come to an end")
        self.check_idle()
        self.check_answers()
        self.check_metrics()

    def check_idle(self) -> None:
        core, kv = self.core, self.scheduler.kv
        stats = core.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)
        assert stats.num_free_blocks == stats.num_blocks
        assert set(kv.pool.ref_counts) == {0}
        assert not kv._claims
        assert not kv._pins
        assert not kv._copies
        assert not kv._copies_in_flight
        assert not core._states
        assert not core._with_history
        assert not core._structured
        assert len(core._steps) == 0

    def answer(self, name: str, index: int = 0) -> list[int]:
        return [t for o in self.heard[name, index] for t in o.new_token_ids]

    def check_answers(self) -> None:
        for name, request in self.requests.items():
            for index in range(request.sampling_params.n):
                self._check_answer(name, request, index)
        for seq in self.hold:
            assert seq.status is Status.FINISHED
            assert seq.token_source is None
            assert -1 not in seq.output_token_ids

    def _check_answer(self, name: str, request: EngineRequest, index: int) -> None:
        outputs, got = self.heard[name, index], self.answer(name, index)
        tokens, reason, stop = solo(
            request, namespace_of(request, None, None), index, self.config.max_seq_len
        )
        cut = self.cut.get((name, index))
        last = outputs[-1] if outputs else None
        broken = self.device.broken.get(name)
        spoilt = min((k for r, i, k in self.device.spoilt if (r, i) == (name, index)), default=None)
        if cut is not None:
            assert got == tokens[: len(got)]
            assert cut == "abort" or (last is not None and last.finish_reason == cut)
        elif (
            broken is not None
            and broken[1] < len(request.prompt_token_ids) - 1
            and self._broke_late(last, got)
        ):
            assert got == tokens[: len(got)]
            assert f"boom {name}" in (last.error or "")
        elif broken is not None and self._breaks(broken[1], len(request.prompt_token_ids), tokens, got):
            end = max(0, broken[1] - len(request.prompt_token_ids) + 1)
            if spoilt is None or end <= spoilt:
                self._check_error(last, got, tokens[:end], f"boom {name}")
            else:
                self._check_error(last, got, tokens[:spoilt], "spoilt")
        elif spoilt is not None and spoilt < len(tokens):
            self._check_error(last, got, tokens[:spoilt], "spoilt")
        else:
            assert got == tokens, f"{name}/{index} has another answer than alone"
            assert last is not None
            assert (last.finish_reason, last.stop_reason) == (reason, stop)

    @staticmethod
    def _broke_late(last: EngineOutput | None, got: list[int]) -> bool:
        """The broken position was in the prefix cache at first, and not after a preemption."""
        if last is None or not got or last.finish_reason != "error" or "boom" not in (last.error or ""):
            return False
        assert last.metrics is not None
        return last.metrics.num_preemptions > 0

    @staticmethod
    def _breaks(position: int, prompt_len: int, tokens: list[int], got: list[int]) -> bool:
        """Whether the broken position is ever computed."""
        if position < prompt_len - 1 and got:
            return False  # found in the prefix cache
        return position < prompt_len + len(tokens) - 1

    @staticmethod
    def _check_error(last: EngineOutput | None, got: list[int], expected: list[int], word: str) -> None:
        assert got == expected
        assert last is not None
        assert last.finish_reason == "error"
        assert word in (last.error or "")

    def check_metrics(self) -> None:
        for m in self.metrics:
            assert sum(getattr(m, part) for part in PARTS) == m.e2e_time
            assert (m.stall_preempted_time > 0) <= (m.num_preemptions > 0)
        stats = self.core.stats()
        heard = sum(len(o.new_token_ids) for outputs in self.heard.values() for o in outputs)
        assert stats.generation_tokens == heard
