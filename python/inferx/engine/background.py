"""Background work: sequences of BACKGROUND_PRIORITY fill what interactive ones leave.

They stand behind all others in order, whatever the scheduling policy.  While an interactive request runs
or waits:

*Tokens.*  A step first gets all that interactive requests would have had without background work.  Of what
is left, at most ``background_tokens`` go to background sequences, which is what bounds the time that they
add to a step.  Decodes come first, in order; who gets nothing keeps its blocks and stands still.

*Slots and blocks* count as free to interactive requests.  When they are short, an admission or a decode of
an interactive request displaces background sequences, the one that is cheapest to recompute first; none
when displacing them all would not be enough.  They go back to their place in the queue.  Admission of a
background one respects the room that running and waiting interactive ones will need.

Otherwise they are scheduled as requests of any one priority are, but with at most ``background_chunk``
tokens of prompts in a step: a request that arrives meanwhile waits for the end of that step.

*Progress.*  Interactive requests depend on nothing here, so what scheduler.py says of them holds.  Without
them it holds of background sequences among themselves.  Beside them the first in order advances in every
step that leaves it a token, and loses its place only to an interactive admission.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

from inferx.engine.kv_manager import PrefixMatch
from inferx.engine.prefill_plan import PrefillPlan
from inferx.engine.protocol import BACKGROUND_PRIORITY
from inferx.engine.request import Sequence, Status
from inferx.engine.scheduler_output import SchedulerOutput

if TYPE_CHECKING:
    from inferx.engine.scheduler import Scheduler


def first_background(queue: list[Sequence]) -> int:
    """Where the background sequences of a queue begin."""
    if not queue or queue[-1].order[0] < BACKGROUND_PRIORITY:
        return len(queue)
    return bisect_left(queue, BACKGROUND_PRIORITY, key=lambda seq: seq.order[0])


def has_background(queue: list[Sequence]) -> bool:
    return bool(queue) and queue[-1].order[0] == BACKGROUND_PRIORITY


def plan_with_background(scheduler: Scheduler, out: SchedulerOutput, candidates: list[Sequence]) -> None:
    """Fill ``out``: as ever for interactive sequences, then for the others.

    candidates: running ones that can go on, in order.
    """
    first = first_background(candidates)
    prefills = scheduler._schedule_decodes(out, candidates[:first])
    out.num_decodes = out.total_num_tokens = len(out.scheduled)
    num_waiting = first_background(scheduler.waiting)
    plan = InteractivePlan(scheduler, out, prefills, scheduler.waiting[:num_waiting])
    plan.run()
    blocked = num_waiting > 0 and not plan.admitting

    config = scheduler.config
    alone = first_background(scheduler.running) == first_background(scheduler.waiting) == 0
    budget = config.max_num_batched_tokens - out.total_num_tokens
    if not alone:
        budget = min(budget, config.background_tokens)
    rest = [seq for seq in candidates[first:] if seq.status is Status.RUNNING]
    late = {id(seq) for seq in [seq for seq in rest if _is_decode(seq)][budget:]}
    before = out.num_decodes
    prefills = _add_decodes(scheduler, out, [seq for seq in rest if id(seq) not in late])
    budget -= out.num_decodes - before
    if alone:
        budget = min(budget, config.background_chunk)
    waiting = [] if blocked or out.preempted else scheduler.waiting[first_background(scheduler.waiting) :]
    if budget > 0 and (prefills or waiting):
        behind = PrefillPlan(scheduler, out, prefills, waiting)
        behind.budget = budget
        behind.reserve(plan.held.values())
        behind.run()


def _is_decode(seq: Sequence) -> bool:
    return seq.num_tokens - seq.num_computed_tokens == 1 and seq.num_tokens > seq.num_prompt_tokens


def _add_decodes(scheduler: Scheduler, out: SchedulerOutput, candidates: list[Sequence]) -> list[Sequence]:
    """Place decodes behind those that are placed, before the prompts; the candidates with more to compute
    that have room for it."""
    before = out.num_decodes
    prompts = out.scheduled[before:]  # of interactive ones: no decode here preempts them
    del out.scheduled[before:]
    prefills = scheduler._schedule_decodes(out, candidates)
    out.num_decodes = len(out.scheduled)
    out.total_num_tokens += out.num_decodes - before
    out.scheduled += prompts
    return prefills


class InteractivePlan(PrefillPlan):
    """The plan of interactive prompts while there are background sequences: those are in nobody's way."""

    def _counted(self) -> list[Sequence]:
        running = self.scheduler.running
        return running[: first_background(running)]

    def _is_closed(self) -> bool:
        return any(seq.order[0] < BACKGROUND_PRIORITY for seq in self.out.preempted)

    def _get_room(self, seq: Sequence, match: PrefixMatch, slots: int, headroom: int) -> bool:
        """Displace background sequences until there is room, if there can be enough."""
        scheduler, kv = self.scheduler, self.kv
        victims = scheduler.running[first_background(scheduler.running) :]
        if kv.spare_blocks(seq, match) - headroom + self._gain(victims, match) < 0:
            return False
        used = sum(s.request.num_slots(s) for s in scheduler.running) - len(self.out.ending)
        free = self.config.max_num_seqs - used
        while slots > free or not kv.admit(seq, match, headroom):
            if not victims:
                return False
            victim = min(reversed(victims), key=kv.unshared_tokens)
            victims.remove(victim)
            if not victim.is_ending:
                free += victim.request.num_slots(victim)
            scheduler._preempt(victim, self.out)
            match = kv.lookup(seq)  # of two equal blocks one may have been forgotten
        return True

    def _gain(self, victims: list[Sequence], match: PrefixMatch) -> int:
        """Blocks that nobody but these hold, and that are not part of the match."""
        refs = self.kv.pool.ref_counts
        held = Counter(block for seq in victims for block in seq.block_table)
        for block in match.blocks:
            held.pop(block, None)
        return sum(refs[block] == count for block, count in held.items())
