"""StepQueue: the steps that the runner has been given and whose results are not yet taken.

A planned step is always carried out.  When something goes wrong, the step is run again: as it was planned,
or entry by entry, so that only the guilty ones end.  That is safe because what a step writes depends on each
sequence alone and on steps before it (see "Two steps in flight" in the scheduler).  Steps launched behind
a failed one may have worked on garbage, so they are run again too, each when its turn comes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from inferx.engine.request import Sequence, Status
from inferx.engine.runner import StepHandle
from inferx.engine.sample_state import SampleState
from inferx.engine.sampler import SampleResult
from inferx.engine.scheduler_output import ScheduledSequence, SchedulerOutput

logger = logging.getLogger("inferx.engine")

StateOf = Callable[[Sequence], SampleState]


class Runner(Protocol):
    """What the queue needs of ``ModelRunner``."""

    steps_in_flight: int

    def launch(self, plan: SchedulerOutput, state_of: StateOf) -> StepHandle: ...

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None: ...

    def capture_graph(self, *, idle: bool) -> bool: ...


@dataclass(slots=True)
class StepResults:
    """``results``: one per sample of the plan; None for one that ran no longer when the step was run again.
    ``failed``: sequences that failed without being sampled, and why."""

    plan: SchedulerOutput
    results: list[SampleResult | None]
    failed: list[tuple[Sequence, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """handle: None when the step has to be run (again).  failed: as a whole; what is left is one by one."""

    plan: SchedulerOutput
    handle: StepHandle | None = None
    failed: bool = False


class _NoSteps:
    """The handle of a plan with nothing in it."""

    def results(self) -> list[SampleResult]:
        return []


class StepQueue:
    """First in, first out."""

    def __init__(self, runner: Runner, state_of: StateOf) -> None:
        self._runner = runner
        self._state_of = state_of
        self._steps: deque[_Step] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def oldest(self) -> SchedulerOutput | None:
        return self._steps[0].plan if self._steps else None

    @property
    def newest(self) -> SchedulerOutput | None:
        return self._steps[-1].plan if self._steps else None

    @property
    def has_room(self) -> bool:
        """Another step may be launched: there are not too many, and none has to be run again first."""
        steps = self._steps
        return len(steps) < self._runner.steps_in_flight and all(s.handle is not None for s in steps)

    def launch(self, plan: SchedulerOutput) -> None:
        """Start a step behind the others.  A failure shows when its turn comes."""
        step = _Step(plan)
        self._steps.append(step)
        if not plan.scheduled:
            step.handle = _NoSteps()
            return
        try:
            step.handle = self._launch(plan)
        except Exception:
            self._note_failure(step)

    def take(self) -> StepResults:
        """Wait for the oldest step.  After an interrupt (Ctrl-C) it is still there, to be taken again."""
        step = self._steps[0]
        try:
            done = self._complete(step)
        except BaseException:
            for other in self._steps:
                other.handle = None
            raise
        self._steps.popleft()
        return done

    def _complete(self, step: _Step) -> StepResults:
        if step.handle is not None:
            try:
                return StepResults(step.plan, list(step.handle.results()))
            except Exception:
                self._note_failure(step)
                self._discard_behind()
        alive = [entry for entry in step.plan.scheduled if entry.seq.status is Status.RUNNING]
        for entry in alive:
            entry.token_source = None  # the steps before have been updated
        if not step.failed:
            try:
                plan = SchedulerOutput(scheduled=alive, block_copies=step.plan.block_copies)
                results = self._launch(plan).results() if alive else []
                return self._fill_in(step.plan, {id(e.seq) for e in alive}, results)
            except Exception:
                self._note_failure(step)
        return self._one_by_one(step.plan, alive)

    def _one_by_one(self, plan: SchedulerOutput, alive: list[ScheduledSequence]) -> StepResults:
        results: list[SampleResult] = []
        failed: list[tuple[Sequence, str]] = []
        uncopied: Exception | None = None
        try:
            # Once more, before anyone writes: the copies may be what failed.
            self._runner.copy_blocks(plan.block_copies)
        except Exception as error:
            uncopied = error  # nobody may read the blocks
        for entry in alive:
            try:
                if uncopied is not None:
                    raise uncopied
                results += self._launch(SchedulerOutput(scheduled=[entry])).results()
            except Exception as error:
                message = f"the model failed on this request: {type(error).__name__}: {error}"
                if entry.samples:
                    results += [SampleResult(None, error=message) for _ in entry.samples]
                else:
                    failed.append((entry.seq, message))
        done = self._fill_in(plan, {id(e.seq) for e in alive}, results)
        done.failed = failed
        return done

    @staticmethod
    def _fill_in(plan: SchedulerOutput, alive: set[int], results: list[SampleResult]) -> StepResults:
        """The results of the living entries, with None in the place of the others'."""
        rest = iter(results)
        filled = [next(rest) if id(e.seq) in alive else None for e in plan.scheduled for _ in e.samples]
        return StepResults(plan, filled)

    def _launch(self, plan: SchedulerOutput) -> StepHandle:
        for entry in plan.scheduled:
            if entry.samples:
                # The sampler's random numbers count from the first token, taken or still on its way.
                number = entry.first_position + entry.num_tokens - entry.seq.num_prompt_tokens
                for seq in entry.samples:
                    self._state_of(seq).row.step = number
        return self._runner.launch(plan, self._state_of)

    def _discard_behind(self) -> None:
        for step in list(self._steps)[1:]:
            if step.handle is not None:
                try:
                    step.handle.results()
                except Exception:
                    logger.debug("a step behind a failed one failed too", exc_info=True)
                step.handle = None

    @staticmethod
    def _note_failure(step: _Step) -> None:
        number = len(step.plan.scheduled)
        logger.exception("a step of %d sequences failed; running them one by one", number)
        step.handle = None
        step.failed = True
