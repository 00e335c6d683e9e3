"""TokenRun: several tokens that one step brings a sequence.

Behind the sampled token a grammar may leave no choice for a while.  Those tokens are appended at once; the
next step computes all of them in one chunk, and samples from the last.  Each counts as if it had been
sampled: the run is cut at the token that ends the sequence, and K and V of the others are computed in order,
so what follows is the same as with one token per step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferx.engine.protocol import FinishReason
from inferx.engine.request import Sequence
from inferx.engine.scheduler_output import SequenceUpdate


@dataclass(frozen=True, slots=True)
class TokenRun:
    """In place of a token: the sampled one and those behind it.

    ``complete``: the answer is complete with the last one; the sequence ends with "stop" there, also where
    the length ends it.
    """

    token_ids: list[int]
    complete: bool = False


def take_run(
    seq: Sequence,
    run: TokenRun,
    take: Callable[[Sequence, int], SequenceUpdate],
    finish: Callable[[Sequence, FinishReason], None],
) -> SequenceUpdate:
    """Append the run's tokens up to the one that ends the sequence.  take: appends one token; finish: ends
    the sequence."""
    update = take(seq, run.token_ids[0])
    taken = 1
    while taken < len(run.token_ids) and update.finish_reason is None:
        update.finish_reason = take(seq, run.token_ids[taken]).finish_reason
        taken += 1
    update.forced = run.token_ids[1:taken]
    update.stop_reason = seq.stop_reason
    if run.complete and taken == len(run.token_ids) and update.finish_reason in (None, "length"):
        if update.finish_reason is None:
            finish(seq, "stop")
        seq.finish_reason = update.finish_reason = "stop"
        update.complete = True
    return update
