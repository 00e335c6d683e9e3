"""What the engine core keeps for each sample beside the scheduler's view of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from inferx.engine.protocol import RequestMetrics, TokenLogprobs
from inferx.engine.request import Phase, Sequence
from inferx.engine.sampler import SampleRow
from inferx.sampling_params import SamplingParams

if TYPE_CHECKING:
    from inferx.engine.pooling import Pooler

QUEUE = "queue_time"
PREEMPTED = "stall_preempted_time"
SCHEDULED_OUT = "stall_scheduled_out_time"
PHASE_BUCKETS = {
    Phase.PREFILL: "prefill_time",
    Phase.DECODE: "decode_time",
    Phase.RECOMPUTE: "stall_recompute_time",
}


def needs_history(params: SamplingParams) -> bool:
    """Whether a token's choice depends on the output tokens before it, other than through the model."""
    return bool(
        params.structured_outputs is not None
        or params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or any(len(words) > 1 for words in params.bad_words_token_ids or ())
    )


class SampleState:
    """Sampler input, prompt log-probabilities and the latency split of one sample.

    The split: all time since arrival is charged to exactly one bucket, the one in force until the next
    ``charge``; so the buckets sum to the time from arrival to the last charge.
    """

    __slots__ = ("_bucket", "_mark", "metrics", "pooler", "prompt_logprobs", "row")

    def __init__(self, row: SampleRow, arrival_time: float) -> None:
        self.row = row
        self.metrics = RequestMetrics(arrival_time=arrival_time)
        # Entry i is the log-probability of prompt token i; the first has no predecessor.
        self.prompt_logprobs: list[TokenLogprobs | None] = [None]
        self.pooler: Pooler | None = None  # of a request for an embedding
        self._mark = arrival_time
        self._bucket = QUEUE

    def fork(self, row: SampleRow) -> SampleState:
        """The state of another sample of the same prompt, with the time spent so far."""
        state = SampleState(row, self.metrics.arrival_time)
        state.metrics = msgspec.structs.replace(self.metrics)
        state.prompt_logprobs = self.prompt_logprobs
        state._mark, state._bucket = self._mark, self._bucket
        return state

    def charge(self, now: float, next_bucket: str | None = None) -> None:
        """Charge the time since the last call to the bucket in force; then ``next_bucket`` is in force."""
        # Clocks of two processes on one machine agree, but arrival may be stamped after our last look.
        elapsed = max(0.0, now - self._mark)
        setattr(self.metrics, self._bucket, getattr(self.metrics, self._bucket) + elapsed)
        self._mark = max(self._mark, now)
        if next_bucket is not None:
            self._bucket = next_bucket

    def note_token(self, token_id: int) -> None:
        """A token was sampled; the first one after ``charge``."""
        if self.metrics.time_to_first_token is None:
            self.metrics.time_to_first_token = self._mark - self.metrics.arrival_time
        self.row.output_token_ids.append(token_id)  # type: ignore[attr-defined]

    def final_metrics(self, seq: Sequence) -> RequestMetrics:
        """The complete record of a finished sample, after ``charge``.  A leader's goes on, for its forks."""
        m = msgspec.structs.replace(self.metrics)
        m.e2e_time = self._mark - m.arrival_time
        m.num_prompt_tokens = seq.num_prompt_tokens
        m.num_cached_tokens = seq.num_cached_tokens
        m.num_computed_prompt_tokens = seq.num_computed_prompt_tokens
        m.num_recomputed_tokens = seq.num_recomputed_tokens
        m.num_prefill_chunks = seq.num_prefill_chunks
        m.num_decode_steps = seq.num_decode_steps
        m.num_preemptions = seq.num_preemptions
        return m
