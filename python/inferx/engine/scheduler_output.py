"""What a step consists of, and what comes back from it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as SequenceABC
from dataclasses import dataclass, field

from inferx.engine.protocol import FinishReason
from inferx.engine.request import Phase, Sequence

# In Sequence.token_ids, in place of a token that a running step will sample.  No token id, never to be read.
PENDING_TOKEN = -1


@dataclass(frozen=True, slots=True)
class SampleError:
    """In place of a token: sampling failed (for example non-finite logits).  Ends this sample only."""

    message: str


@dataclass(slots=True)
class ScheduledSequence:
    """Tokens [first_position, first_position + num_tokens) of ``seq`` are computed in this step.

    ``samples``: who gets a token from the logits of the last position; empty for a chunk that ends before
    the last known token.  More than one when a prompt with n > 1 is complete.

    ``token_source``: where the entry's only token comes from.  None: from ``seq.token_ids``, as always when
    the step before has been updated.  Otherwise that step is still running, ``seq.token_ids`` holds
    PENDING_TOKEN there, and the token is the one that sample number ``token_source`` of it will get, in
    the order of its ``samples``.
    """

    seq: Sequence
    first_position: int
    num_tokens: int
    samples: list[Sequence]
    phase: Phase
    block_table: array[int]
    token_source: int | None = None

    @property
    def needs_sample(self) -> bool:
        return bool(self.samples)

    @property
    def is_prefill(self) -> bool:
        return self.phase is not Phase.DECODE


@dataclass(slots=True)
class SchedulerOutput:
    """One step.  ``scheduled`` has the decodes first (``num_decodes`` of them)."""

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    num_decodes: int = 0
    total_num_tokens: int = 0
    block_copies: list[tuple[int, int]] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    resumed: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    scheduled_out: list[Sequence] = field(default_factory=list)
    # Only when the step before is still in flight: running sequences that it brings their last token, and
    # leaders of n > 1 that it brings their samples.  Neither can go on before its results are there.
    ending: list[Sequence] = field(default_factory=list)
    forking: list[Sequence] = field(default_factory=list)

    @property
    def samples(self) -> list[Sequence]:
        """All sequences that get a token, in the order ``update`` expects the results."""
        return [seq for entry in self.scheduled for seq in entry.samples]


@dataclass(slots=True)
class SequenceUpdate:
    """A sequence got a token, or several at once (``forced``: those behind the first), or ended.

    ``complete``: the last token ends the answer and is part of it, unlike an end token.
    """

    seq: Sequence
    token_id: int | None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None
    forced: SequenceABC[int] = ()
    complete: bool = False
