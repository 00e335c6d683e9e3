"""EngineCore: the step loop.  Scheduler, runner and sampler put together; single-threaded.

    arrive -> waiting -> schedule(budget) -> batch -> forward -> sample -> update -> outputs

Whoever drives it (``LLMEngine`` in-process, ``engine.process`` behind sockets) adds requests between
steps and passes the outputs on.
"""

from __future__ import annotations

import logging
import os
import random
import time

from inferx.engine.args import EngineArgs
from inferx.engine.loading import LoadedModel, load_model
from inferx.engine.protocol import EngineOutput, EngineRequest, EngineStats, FinishReason
from inferx.engine.request import Sequence
from inferx.engine.runner import ModelRunner
from inferx.engine.sample_state import PHASE_BUCKETS, PREEMPTED, SCHEDULED_OUT, SampleState
from inferx.engine.sampler import SampleResult, SampleRow
from inferx.engine.scheduler import SampleError, Scheduler, SchedulerOutput, SequenceUpdate
from inferx.engine.wire import EngineInfo

logger = logging.getLogger("inferx.engine")


class EngineCore:
    """One model with its KV cache and the requests running on it."""

    def __init__(self, loaded: LoadedModel, args: EngineArgs) -> None:
        self.checkpoint = loaded.checkpoint
        self.tokenizer = loaded.tokenizer
        self.model = loaded.model
        self.info: EngineInfo = loaded.info
        self.scheduler = Scheduler(loaded.scheduler_config)
        self.runner = ModelRunner(
            loaded.model,
            num_blocks=loaded.info.num_blocks,
            block_size=loaded.info.block_size,
            kv_cache_dtype=args.kv_cache_dtype,
            tokenizer_vocab_size=loaded.tokenizer.vocab_size,
        )
        # Seeds of requests that bring none; with args.seed a whole run can be repeated.
        self._random = random.Random(
            int.from_bytes(os.urandom(8), "little") if args.seed is None else args.seed
        )
        self._states: dict[str, dict[int, SampleState]] = {}  # by request id, then sample index

    @classmethod
    def load(cls, args: EngineArgs, *, show_progress: bool = False) -> EngineCore:
        """Load the model that ``args`` names.  LoadError, MemoryBudgetError, InvalidRequestError."""
        return cls(load_model(args, show_progress=show_progress), args)

    # ---- requests --------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_unfinished()

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request; InvalidRequestError when it can never run, QueueFullError when too many wait."""
        prefix_key = self.model.prefix_cache_key(len(request.prompt_token_ids))
        self.scheduler.add_request(request, prefix_key)
        params = request.sampling_params
        seed = self._random.getrandbits(63) if params.seed is None else params.seed
        row = SampleRow(params, request.prompt_token_ids, [], seed, 0)
        self._states[request.request_id] = {0: SampleState(row, request.arrival_time)}

    def abort(self, request_id: str) -> None:
        """Drop every sample of a request and free its blocks; unknown ids are ignored."""
        self.scheduler.abort(request_id)
        self._states.pop(request_id, None)

    def finish_sample(self, request_id: str, index: int) -> list[EngineOutput]:
        """The front end found a stop string: end that sample; returns its last message (or nothing)."""
        seq = self.scheduler.finish(request_id, index, "stop")
        if seq is None:
            return []
        self._state(seq).charge(time.monotonic())
        outputs = [self._output(seq, [], "stop")]
        self._forget(outputs)
        return outputs

    def stats(self) -> EngineStats:
        return self.scheduler.stats()

    # ---- the step ----------------------------------------------------------------------------------

    def step(self) -> list[EngineOutput]:
        """Compute one batch; a message for every sample that got a token or ended."""
        plan = self.scheduler.schedule()
        try:
            self._charge_start(plan, time.monotonic())
            results, failed = self._execute(plan)
            self._charge_end(plan, time.monotonic())
        except BaseException:  # Ctrl-C in the middle: as if the step had not been
            self.scheduler.abandon()
            raise
        updates = self.scheduler.update(plan, [_as_update(r) for r in results])
        outputs = [
            self._on_update(update, result)
            for update, result in zip(updates, self._live_results(plan, results, updates), strict=True)
        ]
        for seq, message in failed:
            outputs += self._fail(seq, message)
        self._forget(outputs)
        return outputs

    def _execute(self, plan: SchedulerOutput) -> tuple[list[SampleResult], list[tuple[Sequence, str]]]:
        """Results for every sample of the plan, and sequences that failed without being sampled.

        When the batch fails, its entries are run one by one, so that only the guilty ones end.  That is
        safe because a step's writes depend on each sequence alone: doing them again changes nothing.
        """
        try:
            self.runner.copy_blocks(plan.block_copies)
            return self.runner.execute(plan.scheduled, self._state), []
        except Exception:
            logger.exception("a step of %d sequences failed; running them one by one", len(plan.scheduled))
        results: list[SampleResult] = []
        failed: list[tuple[Sequence, str]] = []
        uncopied: Exception | None = None
        try:
            # Once more, before anyone writes: the copies may be what failed.
            self.runner.copy_blocks(plan.block_copies)
        except Exception as error:
            uncopied = error  # nobody may read the blocks
        for entry in plan.scheduled:
            try:
                if uncopied is not None:
                    raise uncopied
                results += self.runner.execute([entry], self._state)
            except Exception as error:
                message = f"the model failed on this request: {type(error).__name__}: {error}"
                if entry.samples:
                    results += [SampleResult(None, error=message) for _ in entry.samples]
                else:
                    failed.append((entry.seq, message))
        return results, failed

    def _fail(self, seq: Sequence, message: str) -> list[EngineOutput]:
        """End every sample of a prompt whose computation failed."""
        outputs = []
        for sample in seq.request.live_sequences():
            self.scheduler.finish(seq.request_id, sample.index, "error", message)
            outputs.append(self._output(sample, [], "error", error=message))
        return outputs

    @staticmethod
    def _live_results(
        plan: SchedulerOutput, results: list[SampleResult], updates: list[SequenceUpdate]
    ) -> list[SampleResult]:
        """The results that belong to ``updates``: samples that ended meanwhile have none."""
        by_sequence = dict(zip(plan.samples, results, strict=True))
        return [by_sequence[u.seq] for u in updates]

    def _on_update(self, update: SequenceUpdate, result: SampleResult) -> EngineOutput:
        seq = update.seq
        if update.token_id is None:
            return self._output(seq, [], update.finish_reason, error=update.error)
        state = self._state(seq)
        first = state.row.step == 0
        state.note_token(update.token_id)
        output = self._output(seq, [update.token_id], update.finish_reason)
        output.stop_reason = update.stop_reason
        if result.logprobs is not None:
            output.logprobs = [result.logprobs]
        if first and state.row.params.prompt_logprobs is not None:
            output.prompt_logprobs = state.prompt_logprobs
        return output

    def _output(
        self, seq: Sequence, tokens: list[int], reason: FinishReason | None, *, error: str | None = None
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
            output.metrics = self._state(seq).final_metrics(seq)
        return output

    def _forget(self, outputs: list[EngineOutput]) -> None:
        """Drop the states of requests that have ended, once all of their last messages are made."""
        for output in outputs:
            if output.finish_reason is not None and output.request_id not in self.scheduler.requests:
                self._states.pop(output.request_id, None)

    def _state(self, seq: Sequence) -> SampleState:
        """The state of a sample; one of several gets its own when the prompt is complete."""
        states = self._states[seq.request_id]
        state = states.get(seq.index)
        if state is None:
            row = states[0].row
            state = states[0].fork(
                SampleRow(row.params, row.prompt_token_ids, [], row.seed_key, 0, index=seq.index)
            )
            states[seq.index] = state
        return state

    # ---- time ----------------------------------------------------------------------------------------

    def _charge_start(self, plan: SchedulerOutput, now: float) -> None:
        for seq in plan.preempted:
            self._state(seq).charge(now, PREEMPTED)
        for entry in plan.scheduled:
            self._state(entry.seq).charge(now, PHASE_BUCKETS[entry.phase])
        for seq in plan.scheduled_out:
            self._state(seq).charge(now, SCHEDULED_OUT)

    def _charge_end(self, plan: SchedulerOutput, now: float) -> None:
        for entry in plan.scheduled:
            self._state(entry.seq).charge(now)
            for seq in entry.samples:
                self._state(seq).charge(now)
        for seq in plan.scheduled_out:
            self._state(seq).charge(now)


def _as_update(result: SampleResult) -> int | SampleError:
    if result.token_id is None:
        return SampleError(result.error or "no token could be sampled")
    return result.token_id
