"""PrefillPlan: who gets the tokens of a step that decodes leave, and who is admitted.

The policy is described in scheduler.py ("Prefill", "Admission", "Shared prefixes").
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from inferx.engine.kv_manager import PrefixMatch
from inferx.engine.request import ORDER, Phase, Sequence, Status, remove_ordered
from inferx.engine.scheduler_output import ScheduledSequence, SchedulerOutput

if TYPE_CHECKING:
    from inferx.engine.scheduler import Scheduler

# Waiting for a shared prefix costs a step of latency; it must save this part of a step's work (1/8).
_SHARE_FRACTION = 8


class PrefillPlan:
    """Decides for one step, then is thrown away.  ``run`` fills ``out`` and moves sequences to running."""

    def __init__(
        self, scheduler: Scheduler, out: SchedulerOutput, prefills: list[Sequence], waiting: list[Sequence]
    ) -> None:
        """prefills: running.  waiting: who may be admitted.  Both in order."""
        self.scheduler = scheduler
        self.kv = scheduler.kv
        self.config = scheduler.config
        self.out = out
        self.prefills = prefills
        self.waiting = waiting
        self.budget = scheduler.config.max_num_batched_tokens - out.total_num_tokens
        self.long_budget = 0  # what long prompts may still take before the short ones had their turn
        self.capped: list[tuple[Sequence, ScheduledSequence | None]] = []  # long ones that could use more
        # Slots and blocks that nobody further back may take.
        self.held: dict[int, tuple[int, int]] = {}
        self.free_slots = 0
        self.headroom = 0
        self.admitting = bool(waiting) and not self._is_closed()
        if self.admitting:
            counted = self._counted()
            # Who only awaits his last token takes part in no step from now on.
            slots = sum(seq.request.num_slots(seq) for seq in counted if not seq.is_ending)
            self.free_slots = self.config.max_num_seqs - slots
            growing = [seq for seq in counted if scheduler.can_grow(seq)]
            self.headroom = sum(seq.request.num_slots(seq) for seq in growing)

    def _is_closed(self) -> bool:
        """Nobody is admitted in a step that throws someone out."""
        return bool(self.out.preempted)

    def _counted(self) -> list[Sequence]:
        """Running ones whose slots, and whose room to grow, are not for those that wait."""
        return self.scheduler.running

    def reserve(self, held: Iterable[tuple[int, int]]) -> None:
        """Slots and blocks that others will need."""
        for slots, blocks in held:
            self.free_slots -= slots
            self.headroom += blocks

    def run(self) -> None:
        priority: int | None = None
        for seq in self._in_order():
            if seq.order[0] != priority:
                self._give_rest_to_long()
                priority = seq.order[0]
                self.long_budget = self.budget - self.budget // 2
            if self.budget == 0:
                break
            self._consider(seq)
        self._give_rest_to_long()

    def _in_order(self) -> Iterator[Sequence]:
        """Running prefills and, as long as admission is open, waiting sequences, merged by order."""
        waiting = self.waiting[: self.config.max_num_seqs] if self.admitting else []
        i = 0
        for seq in self.prefills:
            while i < len(waiting) and self.admitting and waiting[i].order < seq.order:
                yield waiting[i]
                i += 1
            yield seq
        while i < len(waiting) and self.admitting:
            yield waiting[i]
            i += 1

    def _consider(self, seq: Sequence) -> None:
        least = 0
        if seq.status is not Status.RUNNING:
            if not self._take_in(seq):
                return
            least = 1  # nobody is admitted for nothing, even when a partial match had to be dropped
        if not self._is_long(seq.num_tokens - seq.num_computed_tokens):
            self._place(seq, self.budget)
            return
        chunk = min(max(self.long_budget, least), self.budget)
        entry = self._place(seq, chunk) if chunk else None
        if entry is not None:
            self.long_budget = max(0, self.long_budget - entry.num_tokens)
        self.capped.append((seq, entry))

    def _take_in(self, seq: Sequence) -> bool:
        """Admit a waiting sequence unless it waits for a prefix, for the long ones' half, or for room."""
        if self._waits_for_prefix(seq):
            return False
        lane_full = self.long_budget == 0
        known = seq.known_cached_tokens
        if lane_full and known >= 0 and self._is_long(seq.num_tokens - known):
            self._postpone(seq)  # it would get nothing now, so it need not be looked up again
            return False
        match = self._look_up(seq)
        if match is None:
            return False
        if lane_full and self._is_long(seq.num_tokens - seq.known_cached_tokens):
            self._postpone(seq)
            return False
        return self._admit(seq, match)

    def _is_long(self, num_tokens: int) -> bool:
        return num_tokens > self.config.max_num_batched_tokens // 2

    def _place(self, seq: Sequence, limit: int) -> ScheduledSequence:
        first = seq.num_computed_tokens
        n = self._chunk(seq, 0, limit)
        phase = Phase.RECOMPUTE if first < seq.recompute_end else Phase.PREFILL
        if first >= seq.num_prompt_tokens and phase is Phase.PREFILL:
            phase = Phase.DECODE  # resumed, and the cache still had everything
        entry = ScheduledSequence(seq, first, 0, [], phase, seq.block_table)
        self.out.scheduled.append(entry)
        self._extend(entry, n)
        return entry

    def _chunk(self, seq: Sequence, taken: int, limit: int) -> int:
        n = min(seq.num_tokens - seq.num_computed_tokens - taken, limit)
        threshold = self.config.long_prefill_token_threshold
        return min(n, threshold - taken) if threshold else n

    def _extend(self, entry: ScheduledSequence, n: int) -> None:
        entry.num_tokens += n
        self.budget -= n
        self.out.total_num_tokens += n
        seq = entry.seq
        if entry.first_position + entry.num_tokens == seq.num_tokens:
            entry.samples = [seq] if seq.request.forked else seq.request.live_sequences()

    def _give_rest_to_long(self) -> None:
        capped, self.capped = self.capped, []
        blocked = False
        for seq, entry in capped:
            if self.budget == 0:
                return
            if entry is not None:
                self._extend(entry, self._chunk(seq, entry.num_tokens, self.budget))
            elif seq.status is Status.RUNNING:
                self._place(seq, self.budget)
            elif not blocked:
                self._unhold(seq)
                match = self._look_up(seq)
                if match is not None and self._admit(seq, match):
                    self._place(seq, self.budget)
                else:
                    blocked = match is not None  # out of room; who waits for a prefix blocks nobody

    # Waiting sequences

    def _waits_for_prefix(self, seq: Sequence) -> bool:
        awaited = seq.num_awaited_blocks
        if awaited and self.kv.is_claimed(seq.block_hashes[awaited - 1]):
            self._hold(seq, awaited)
            return True
        seq.num_awaited_blocks = 0
        return False

    def _look_up(self, seq: Sequence) -> PrefixMatch | None:
        """What is cached of ``seq``; None when it had better wait for what is being computed."""
        match = self.kv.lookup(seq)
        shared = len(match.blocks)
        seq.known_cached_tokens = self.kv.num_tokens(match)
        claimed = self.kv.claimed_blocks(seq, shared)
        if claimed * self.config.block_size * _SHARE_FRACTION < self.config.max_num_batched_tokens:
            return match
        seq.num_awaited_blocks = shared + claimed
        self._hold(seq, shared + claimed)
        return None

    def _postpone(self, seq: Sequence) -> None:
        self.capped.append((seq, None))
        self._hold(seq, seq.known_cached_tokens // self.config.block_size)

    def _hold(self, seq: Sequence, num_shared_blocks: int) -> None:
        """Reserve for ``seq`` the slots and blocks it will need beside ``num_shared_blocks``."""
        slots = seq.request.num_slots(seq)
        blocks = self.kv.num_blocks_for(seq.num_tokens) - num_shared_blocks
        self.held[id(seq)] = (slots, blocks)
        self.free_slots -= slots
        self.headroom += blocks
        if self.free_slots <= 0:
            self.admitting = False

    def _unhold(self, seq: Sequence) -> None:
        slots, blocks = self.held.pop(id(seq))
        self.free_slots += slots
        self.headroom -= blocks

    def _admit(self, seq: Sequence, match: PrefixMatch) -> bool:
        """Move a waiting sequence to running; closes admission when it is short of blocks or slots."""
        slots = seq.request.num_slots(seq)
        headroom = self.headroom if self._counted() else 0
        if slots > self.free_slots or not self._get_room(seq, match, slots, headroom):
            self.admitting = False
            return False
        self.free_slots -= slots
        self._start(seq, slots)
        return True

    def _get_room(self, seq: Sequence, match: PrefixMatch, slots: int, headroom: int) -> bool:
        return self.kv.admit(seq, match, headroom)

    def _start(self, seq: Sequence, slots: int) -> None:
        scheduler = self.scheduler
        remove_ordered(scheduler.waiting, seq)
        if seq.status is Status.WAITING:
            self.out.admitted.append(seq)
            seq.num_cached_tokens = seq.num_computed_tokens
            if self.config.enable_prefix_caching:
                scheduler._stats.prefix_cache_queries += seq.num_prompt_tokens
                scheduler._stats.prefix_cache_hits += seq.num_computed_tokens
        else:
            self.out.resumed.append(seq)
        seq.status = Status.RUNNING
        seq.known_cached_tokens = -1
        insort(scheduler.running, seq, key=ORDER)
        if scheduler.can_grow(seq):
            self.headroom += slots
