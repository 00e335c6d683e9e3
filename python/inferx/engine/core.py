"""EngineCore: the step loop.  Scheduler, runner and sampler put together; single-threaded.

    arrive -> waiting -> schedule(budget) -> batch -> forward -> sample -> update -> outputs

On the CPU a step is over when it has been launched.  On a GPU the next step is planned and launched while
one runs (``runner.steps_in_flight`` = 2): its decodes take their input tokens on the device.

Whoever drives it (``LLMEngine`` in-process, ``engine.process`` behind sockets) adds requests between
steps and passes the outputs on.
"""

from __future__ import annotations

import os
import random
import time

from inferx.engine.args import EngineArgs
from inferx.engine.loading import LoadedModel, load_model
from inferx.engine.pooling import Pooler
from inferx.engine.protocol import EngineOutput, EngineRequest, EngineStats, FinishReason
from inferx.engine.request import Sequence, Status
from inferx.engine.sample_state import PHASE_BUCKETS, PREEMPTED, SCHEDULED_OUT, SampleState, needs_history
from inferx.engine.sampler import SampleResult, SampleRow
from inferx.engine.scheduler import SampleError, Scheduler, SchedulerOutput, SequenceUpdate, StepResult
from inferx.engine.step_queue import Runner, StepQueue
from inferx.engine.structured.requests import StructuredRequests, follow
from inferx.engine.structured.vocabulary import Vocabulary
from inferx.engine.wire import EngineInfo

# How long a step waits when every request waits for its grammar.
GRAMMAR_WAIT_SECONDS = 0.01


class EngineCore:
    """One model with its KV cache and the requests running on it."""

    def __init__(self, loaded: LoadedModel, args: EngineArgs, runner: Runner | None = None) -> None:
        self.checkpoint = loaded.checkpoint
        self.tokenizer = loaded.tokenizer
        self.model = loaded.model
        self.info: EngineInfo = loaded.info
        self.scheduler = Scheduler(loaded.scheduler_config)
        self.clock = time.monotonic
        self.runner: Runner = runner or loaded.make_runner()
        # Seeds of requests that bring none; with args.seed a whole run can be repeated.
        self._random = random.Random(
            int.from_bytes(os.urandom(8), "little") if args.seed is None else args.seed
        )
        self._states: dict[str, dict[int, SampleState]] = {}  # by request id, then sample index
        self._with_history: set[str] = set()  # ids of requests whose sampling looks at their own output
        self._structured = StructuredRequests(self.make_vocabulary, jump_ahead=args.enable_jump_ahead)
        self._steps = StepQueue(self.runner, self._state)
        self._num_pooled = 0  # tokens that pooling requests ended with, which nobody sees
        self._only_decodes = False  # whether nothing but decoding has been charged to since a step began

    @classmethod
    def load(cls, args: EngineArgs, *, show_progress: bool = False) -> EngineCore:
        """Load the model that ``args`` names.  LoadError, MemoryBudgetError, InvalidRequestError."""
        return cls(load_model(args, show_progress=show_progress), args)

    # ---- requests --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_unfinished() or len(self._steps) > 0

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request; InvalidRequestError when it can never run, QueueFullError when too many wait."""
        prefix_key = self.model.prefix_cache_key(len(request.prompt_token_ids))
        params = request.sampling_params
        structured = params.structured_outputs is not None
        self.scheduler.add_request(request, prefix_key, held=structured)
        seed = self._random.getrandbits(63) if params.seed is None else params.seed
        row = SampleRow(params, request.prompt_token_ids, [], seed, 0)
        state = SampleState(row, request.arrival_time)
        if request.pooling is not None:
            state.pooler = Pooler(request.pooling, len(request.prompt_token_ids))
        self._states[request.request_id] = {0: state}
        if needs_history(params):
            self._with_history.add(request.request_id)
        if structured:
            self._structured.add(request.request_id, params)

    def make_vocabulary(self) -> Vocabulary:
        """The model's tokens, for grammars."""
        eos = {*self.model.config.eos_token_ids, *self.tokenizer.eos_token_ids}
        return Vocabulary(self.tokenizer, eos, self.info.vocab_size)

    def abort(self, request_id: str) -> None:
        """Drop every sample of a request and free its blocks; unknown ids are ignored."""
        self.scheduler.abort(request_id)
        self._drop(request_id)

    def finish_sample(self, request_id: str, index: int) -> list[EngineOutput]:
        """The front end found a stop string: end that sample; returns its last message (or nothing)."""
        seq = self.scheduler.finish(request_id, index, "stop")
        if seq is None:
            return []
        outputs = [self._output(seq, [], "stop", self.clock())]
        self._forget(outputs)
        return outputs

    def stats(self) -> EngineStats:
        stats = self.scheduler.stats()
        stats.generation_tokens -= self._num_pooled
        stats.total_parameters = self.info.total_parameters
        stats.active_parameters = self.info.active_parameters
        return stats

    # ---- the step ----------------------------------------------------------------------------------

    def step(self) -> list[EngineOutput]:
        """Take one step's results; a message for every sample that got a token or ended.

        The runner says how many steps may be under way.  With more than one, the steps behind are planned
        and launched before this waits.
        """
        outputs = self._release_compiled()
        self._plan_ahead()
        if self._steps:
            outputs += self._take_step()
        while self._steps.oldest is not None and not self._steps.oldest.scheduled:
            self._take_step()  # an empty plan has nothing to say
        return outputs

    def work_while_idle(self) -> bool:
        """Prepare for later steps, a little at a time, when there is no work; whether more is left."""
        return not self.has_work and self.runner.capture_graph(idle=True)

    def _release_compiled(self) -> list[EngineOutput]:
        """Let requests run whose grammar has been compiled; end those whose grammar is none."""
        if not self.scheduler.held:
            return []
        if len(self.scheduler.held) == len(self.scheduler.requests) and not self._steps:
            self._structured.wait(GRAMMAR_WAIT_SECONDS)
        outputs: list[EngineOutput] = []
        for request_id, fault in self._structured.take_compiled():
            seq = self.scheduler.requests[request_id].sequences[0]
            if fault is not None:
                outputs += self._fail(seq, fault, self.clock())
                continue
            self._states[request_id][0].row.matcher = self._structured.new_matcher(request_id)
            self.scheduler.release(request_id)
        self._forget(outputs)
        return outputs

    def _plan_ahead(self) -> None:
        while self._steps.has_room and self._has_runnable and not self._awaits_tokens():
            first = not self._steps
            plan = self.scheduler.schedule()
            now = self.clock()
            self._charge_moves(plan, now)
            if first:
                self._charge_start(plan, now)
            self._steps.launch(plan)

    @property
    def _has_runnable(self) -> bool:
        return len(self.scheduler.requests) > len(self.scheduler.held)

    def _awaits_tokens(self) -> bool:
        """The next step would sample from a history that a step in flight is about to extend."""
        newest = self._steps.newest
        if newest is None or not self._with_history:
            return False
        return any(seq.request_id in self._with_history for seq in newest.samples)

    def _take_step(self) -> list[EngineOutput]:
        step = self._steps.take()
        plan, now = step.plan, self.clock()
        outputs: list[EngineOutput] = []
        for seq, message in step.failed:  # before the update, so that nothing of theirs gets into the cache
            outputs += self._fail(seq, message, now)
        changes = [_as_update(r) for r in step.results]
        if self._structured:
            self._follow_grammars(plan.samples, changes)
        updates = self.scheduler.update(plan, changes)
        result_of = dict(zip(plan.samples, step.results, strict=True))
        # Samples that ended meanwhile have no update.
        outputs += [self._on_update(update, result_of[update.seq], now) for update in updates]
        self._forget(outputs)
        if self._steps.oldest is not None:
            self._charge_start(self._steps.oldest, now)
        return outputs

    def _follow_grammars(self, samples: list[Sequence], changes: list[StepResult]) -> None:
        """Let the samples that have a grammar go on by their tokens."""
        for i, (seq, change) in enumerate(zip(samples, changes, strict=True)):
            if isinstance(change, int) and seq.finish_reason is None:
                matcher = self._state(seq).row.matcher
                if matcher is not None:
                    changes[i] = follow(matcher, change)

    def _fail(self, seq: Sequence, message: str, now: float) -> list[EngineOutput]:
        """End every sample of a prompt whose computation failed."""
        outputs = []
        for sample in seq.request.live_sequences():
            self.scheduler.finish(seq.request_id, sample.index, "error", message)
            outputs.append(self._output(sample, [], "error", now, error=message))
        return outputs

    def _on_update(self, update: SequenceUpdate, result: SampleResult | None, now: float) -> EngineOutput:
        seq = update.seq
        if update.token_id is None:
            return self._output(seq, [], update.finish_reason, now, error=update.error)
        state = self._state(seq)
        first = not state.row.output_token_ids
        if first:
            state.charge(now)
        tokens = [update.token_id, *update.forced]
        for token in tokens:
            state.note_token(token)
        if state.pooler is not None:
            return self._pooled(seq, state.pooler, now)
        output = self._output(seq, tokens, update.finish_reason, now)
        output.stop_reason = update.stop_reason
        output.ends_in_text = update.complete
        if result is not None and result.logprobs is not None:
            output.logprobs = [result.logprobs]
        if first and state.row.params.prompt_logprobs is not None:
            output.prompt_logprobs = state.prompt_logprobs
        return output

    def _pooled(self, seq: Sequence, pooler: Pooler, now: float) -> EngineOutput:
        """The end of a pooling request: its one token is dropped."""
        self._num_pooled += 1
        try:
            embedding = pooler.result()
        except ValueError as error:
            return self._output(seq, [], "error", now, error=f"no embedding of this prompt: {error}")
        output = self._output(seq, [], "stop", now)
        output.embedding = embedding
        return output

    def _output(
        self,
        seq: Sequence,
        tokens: list[int],
        reason: FinishReason | None,
        now: float,
        *,
        error: str | None = None,
    ) -> EngineOutput:
        output = EngineOutput(
            request_id=seq.request_id,
            index=seq.index,
            new_token_ids=tokens,
            finish_reason=reason,
            error=error,
            num_cached_tokens=seq.num_cached_tokens,
        )
        if reason is not None:
            state = self._state(seq)
            state.charge(now)
            output.metrics = state.final_metrics(seq)
        return output

    def _forget(self, outputs: list[EngineOutput]) -> None:
        """Drop the states of requests that have ended, once all of their last messages are made."""
        for output in outputs:
            if output.finish_reason is not None and output.request_id not in self.scheduler.requests:
                self._drop(output.request_id)

    def _drop(self, request_id: str) -> None:
        self._states.pop(request_id, None)
        self._structured.discard(request_id)
        self._with_history.discard(request_id)

    def _state(self, seq: Sequence) -> SampleState:
        """The state of a sample; one of several gets its own when the prompt is complete."""
        kept = seq.sample_state
        if type(kept) is SampleState:
            return kept
        states = self._states[seq.request_id]
        state = states.get(seq.index)
        if state is None:
            row = states[0].row
            state = states[0].fork(
                SampleRow(row.params, row.prompt_token_ids, [], row.seed_key, 0, index=seq.index)
            )
            state.row.matcher = self._structured.new_matcher(seq.request_id)
            states[seq.index] = state
        seq.sample_state = state
        return state

    # ---- time ----------------------------------------------------------------------------------------

    # A step's time goes from the end of the step before it (or its planning, if none was under way) to its
    # own end, so planning ahead changes only the buckets of those who enter or leave.  Time goes on in the
    # same bucket until another one is named, so a sample is charged when that happens, and when its record
    # is looked at.

    def _charge_moves(self, plan: SchedulerOutput, now: float) -> None:
        for seq in plan.preempted:
            self._state(seq).charge(now, PREEMPTED)
        if plan.admitted or plan.resumed:
            phases = {id(entry.seq): entry.phase for entry in plan.scheduled}
            for seq in (*plan.admitted, *plan.resumed):
                self._state(seq).charge(now, PHASE_BUCKETS[phases[id(seq)]])

    def _charge_start(self, plan: SchedulerOutput, now: float) -> None:
        quiet = 0 < len(plan.scheduled) == plan.num_decodes and not plan.scheduled_out and not plan.forking
        if quiet and self._only_decodes:
            return  # they have decoded since the step before
        self._only_decodes = quiet
        for entry in plan.scheduled:
            if entry.seq.status is not Status.FINISHED:
                self._state(entry.seq).charge(now, PHASE_BUCKETS[entry.phase])
        for seq in plan.scheduled_out:
            if seq.status is not Status.FINISHED:
                self._state(seq).charge(now, SCHEDULED_OUT)
        for leader in plan.forking:
            for seq in leader.request.live_sequences():
                self._state(seq).charge(now, SCHEDULED_OUT)


def _as_update(result: SampleResult | None) -> StepResult:
    if result is None:
        return None
    if result.token_id is None:
        return SampleError(result.error or "no token could be sampled")
    return result.token_id
