"""A device that is late: steps are launched, run some time later, in order, and only then have results.

It stands in for ``ModelRunner`` under an ``EngineCore``.  As a GPU's runner does, ``launch`` reads from the
host all that the step needs; what the step reads and writes on the device is read and written when it
runs, which the test decides.  The "model" is that of ``simulator``: a token's K and V is a record of the
whole prefix up to it, and the next token is a function of that, so any wrong input shows.

When a step runs, every input token must be the right one for its request and position (``Truth`` knows
them without an engine), every slot before it must hold the request's own prefix, and slots that a
sequence is going to write are wiped first, so that a block cannot be read after it was handed on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from simulator import FakeMemory, Record, mix, namespace_of, next_token, start_hash

from inferx.engine.protocol import EngineRequest
from inferx.engine.request import Sequence, Status
from inferx.engine.sample_state import SampleState, needs_history
from inferx.engine.sampler import SampleResult
from inferx.engine.scheduler_output import PENDING_TOKEN, ScheduledSequence, SchedulerOutput


class Violation(BaseException):
    """The engine did what it must not.  Not an Exception: it would take that for a failing model."""


def check(condition: bool, message: str) -> None:
    if not condition:
        raise Violation(message)


GARBAGE: Record = ("garbage", -1, -1, -1)


class Truth:
    """What one sample of a request computes, token by token, past its end too."""

    def __init__(self, request: EngineRequest, index: int) -> None:
        self.index = index
        self.prompt_len = len(request.prompt_token_ids)
        self._namespace = namespace_of(request, None, None)
        self._records: list[Record] = []
        self._hash = start_hash(self._namespace)
        for token in request.prompt_token_ids:
            self._append(token)

    def _append(self, token: int) -> None:
        self._hash = mix(self._hash, token)
        self._records.append((self._namespace, token, len(self._records), self._hash))

    def records(self, end: int) -> list[Record]:
        """Of the first ``end`` tokens."""
        while len(self._records) < end:
            self._append(next_token(self._hash, self.index))
        return self._records[:end]

    def token(self, position: int) -> int:
        return self.records(position + 1)[position][1]

    def outputs(self, number: int) -> list[int]:
        return [r[1] for r in self.records(self.prompt_len + number)[self.prompt_len :]]


@dataclass
class Sample:
    """One sample as launched.  ``spoilt``: the sampler will fail on it."""

    truth: Truth
    number: int
    spoilt: bool


@dataclass
class Entry:
    """One scheduled sequence as launched.  ``tokens``: its inputs, the last one None when it is gathered
    from sample ``source`` of the step launched before."""

    name: str
    truth: Truth
    table: list[int]
    first: int
    tokens: list[int | None]
    source: int | None
    samples: list[Sample]
    broken: bool

    @property
    def end(self) -> int:
        return self.first + len(self.tokens)


@dataclass
class Step:
    device: FakeDevice
    copies: list[tuple[int, int]]
    entries: list[Entry]
    before: Step | None
    ran: bool = False
    error: Exception | None = None
    reported: bool = False  # the engine has heard of the error
    interrupted: bool = False  # while its results were taken: what was taken may be lost
    ids: list[int | None] = field(default_factory=list)  # sampled; None is junk

    def results(self) -> list[SampleResult]:
        return self.device.wait(self)


class FakeDevice:
    """``rng`` decides what may not matter: when steps run, in what order entries do, what junk is.

    broken: request id -> (where, position): computing that position of the request raises, in ``launch``
    or when the step runs ("results").  spoilt: (request id, index, number of the output token) that the
    sampler fails on.  interrupt: when the next Ctrl-C comes, None for never.
    """

    def __init__(self, num_blocks: int, block_size: int, rng: random.Random, steps_in_flight: int) -> None:
        self.steps_in_flight = steps_in_flight
        self.rng = rng
        self.memory = FakeMemory(num_blocks, block_size)
        self.block_size = block_size
        self.truths: dict[tuple[int, int], Truth] = {}  # (id of engine request, index)
        self.broken: dict[str, tuple[str, int]] = {}
        self.spoilt: set[tuple[str, int, int]] = set()
        self.interrupt: str | None = None
        self.copies_fail = False
        self.queue: list[Step] = []
        self.newest: Step | None = None
        self.seen: Counter[str] = Counter()
        self.on_run: Callable[[], None] = lambda: None

    # What the engine calls

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        if copies and self.copies_fail:
            raise RuntimeError("no copy")
        self.run_all()  # copies queue behind what was launched
        self.memory.copy(copies)

    def capture_graph(self, *, idle: bool) -> bool:
        return False

    def launch(self, plan: SchedulerOutput, state_of: Callable[[Sequence], SampleState]) -> Step:
        self._interrupt("before launch")
        if plan.block_copies and self.copies_fail:
            raise RuntimeError("no copy")
        entries = [self._read(e, state_of) for e in plan.scheduled]
        before = None if self.newest is None or self.newest.reported else self.newest
        step = Step(self, list(plan.block_copies), entries, before)
        for entry in entries:
            if entry.broken and self.broken[entry.name][0] == "launch":
                raise RuntimeError(f"boom {entry.name}")
            if entry.source is not None:
                assert step.before is not None
                check(entry.source < sum(len(e.samples) for e in step.before.entries), "no such sample")
                self.seen["token gathered on the device"] += 1
        self.newest = step
        self.queue.append(step)
        if self.steps_in_flight == 1:
            self.wait(step)
        self._interrupt("after launch")
        return step

    def wait(self, step: Step) -> list[SampleResult]:
        check(not step.interrupted, "half-taken results are taken")
        step.interrupted = self.interrupt in ("before results", "after results")
        self._interrupt("before results")
        while not step.ran:
            self.run_next()
        self._interrupt("after results")
        if step.error is not None:
            step.reported = True
            raise step.error
        results = []
        for sample, token in zip([s for e in step.entries for s in e.samples], step.ids, strict=True):
            error = "spoilt" if sample.spoilt else None
            results.append(SampleResult(None if error else token, error=error))
        return results

    def _interrupt(self, where: str) -> None:
        if self.interrupt == where:
            self.interrupt = None
            self.newest = None  # whatever comes next starts from what the host knows
            self.seen["interrupted"] += 1
            raise KeyboardInterrupt

    # Reading from the host, at launch

    def truth(self, seq: Sequence) -> Truth:
        request = seq.request.engine_request
        key = (id(request), seq.index)
        if key not in self.truths:
            self.truths[key] = Truth(request, seq.index)
        return self.truths[key]

    def _read(self, e: ScheduledSequence, state_of: Callable[[Sequence], SampleState]) -> Entry:
        seq, end = e.seq, e.first_position + e.num_tokens
        check(seq.status is Status.RUNNING, f"{seq} is launched and does not run")
        tokens: list[int | None] = list(seq.token_ids[e.first_position : end])
        if e.token_source is not None:
            check(tokens == [PENDING_TOKEN], f"{seq}: the token to gather is known")
            tokens = [None]
        check(PENDING_TOKEN not in tokens, f"{seq}: a pending token is read")
        width = -(-end // self.block_size)
        check(len(e.block_table) >= width, f"{seq}: blocks are missing")
        number = end - seq.num_prompt_tokens
        for sample in e.samples:
            row = state_of(sample).row
            check(row.step == number, f"{sample} draws token {row.step}, not {number}")
            known = list(row.output_token_ids)
            check(known == self.truth(sample).outputs(len(known)), f"{sample}: wrong history")
            if needs_history(row.params):
                check(len(known) == number, f"{sample} is sampled before its history is known")
                self.seen["history known"] += number > 0
        where = self.broken.get(seq.request_id)
        return Entry(
            name=seq.request_id,
            truth=self.truth(seq),
            table=list(e.block_table),
            first=e.first_position,
            tokens=tokens,
            source=e.token_source,
            samples=[
                Sample(self.truth(s), number, (s.request_id, s.index, number) in self.spoilt)
                for s in e.samples
            ],
            broken=where is not None and e.first_position <= where[1] < end,
        )

    # Running, later

    def run_all(self) -> None:
        while self.queue:
            self.run_next()

    def run_next(self) -> None:
        step = self.queue.pop(0)
        step.ran = True
        self.on_run()
        if step.before is not None and step.before.error is not None:
            self._run_on_junk(step)
        else:
            self._run(step)

    def _run(self, step: Step) -> None:
        self.memory.copy(step.copies)
        for entry in step.entries:
            self._wipe(entry)
        written: set[tuple[int, int]] = set()
        for entry in self.rng.sample(step.entries, len(step.entries)):
            if entry.broken:
                step.error = RuntimeError(f"boom {entry.name}")
                return
            token = self._gathered(step, entry)
            if token is None:
                self._fill(entry, GARBAGE)  # nobody will ask for it
            else:
                self._compute(entry, token, written)
        step.ids = [
            None if s.spoilt else s.truth.token(s.truth.prompt_len + s.number)
            for e in step.entries
            for s in e.samples
        ]

    def _gathered(self, step: Step, entry: Entry) -> int | None:
        """The entry's last input token; None when the sample it comes from had failed."""
        if entry.source is None:
            return entry.tokens[-1]
        assert step.before is not None
        check(step.before.ran, "a step ran before the one it depends on")
        return step.before.ids[entry.source]

    def _compute(self, entry: Entry, last: int, written: set[tuple[int, int]]) -> None:
        size, right = self.block_size, entry.truth.records(entry.end)
        tokens = [*entry.tokens[:-1], last]
        check(tokens == [r[1] for r in right[entry.first :]], f"{entry.name} gets wrong input tokens")
        for i in range(0, entry.first, size):
            n = min(size, entry.first - i)
            block = entry.table[i // size]
            check(self.memory.blocks[block][:n] == right[i : i + n], f"{entry.name} reads another's K and V")
            check(
                all((block, o) not in written for o in range(n)), f"{entry.name} reads what is just written"
            )
        for p in range(entry.first, entry.end):
            slot = entry.table[p // size], p % size
            check(slot not in written, f"{entry.name} and another sequence write the same slot")
            written.add(slot)
            self.memory.blocks[slot[0]][slot[1]] = right[p]

    def _wipe(self, entry: Entry) -> None:
        """Whatever was in the slots from the entry's first position on is lost now."""
        size = self.block_size
        for p in range(entry.first, len(entry.table) * size):
            self.memory.blocks[entry.table[p // size]][p % size] = None

    def _fill(self, entry: Entry, record: Record) -> None:
        for p in range(entry.first, entry.end):
            self.memory.blocks[entry.table[p // self.block_size]][p % self.block_size] = record

    def _run_on_junk(self, step: Step) -> None:
        """The step before failed, so this one has no input: it writes junk, and may fail itself."""
        self.seen["ran on junk behind a failed step"] += 1
        self.memory.copy(step.copies)
        for entry in step.entries:
            self._fill(entry, GARBAGE)
        step.ids = [self.rng.randrange(9) for e in step.entries for _ in e.samples]
        if self.rng.random() < 0.5:
            step.error = RuntimeError("junk in, error out")
