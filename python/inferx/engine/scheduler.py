"""Scheduler: which tokens of which requests the next step computes.  Pure: no torch, clock or I/O.

How to use it, once per step::

    scheduler = Scheduler(SchedulerConfig(num_blocks=..., max_model_len=...))
    scheduler.add_request(engine_request, prefix_key=None)      # InvalidRequestError, QueueFullError
    while scheduler.has_unfinished():
        output = scheduler.schedule()                           # a SchedulerOutput
        # 1. copy blocks: output.block_copies, [(source, destination)], all at once
        # 2. forward: for e in output.scheduled compute e.seq.token_ids[e.first_position :
        #    e.first_position + e.num_tokens], writing K and V through e.block_table
        # 3. sample: for e in output.scheduled with e.samples, the logits of e's last token give one token
        #    for each sequence of e.samples, in that order (output.samples is the flat list)
        for u in scheduler.update(output, results):             # one int or SampleError per sample
            ...                                                 # u.seq, u.token_id, u.finish_reason ...

``abort(request_id)`` and ``finish(request_id, index, reason)`` may be called at any time, also between
``schedule`` and ``update``: the blocks are free at once, but nothing is handed out before the next
``schedule``.  Each ``schedule`` is followed by its ``update``, in order; see "Two steps in flight" for how
much later.

For the latency split: ``output.admitted`` (first time in a step: queueing ends), ``output.resumed`` (after
a preemption), ``output.preempted``, ``output.scheduled_out`` (running, left out for lack of budget), and
``e.phase`` of each scheduled sequence.  Every running sequence is in exactly one of ``scheduled``,
``scheduled_out`` and, with another step in flight, ``ending`` and ``forking``.  Sequences forked from a
leader appear from the next step on.

Policy
------
*Order.*  Sequences are served by (priority, arrival time, order of arrival).

*Decodes first.*  Each running sequence that needs one more token gets it.  There are at most
max_num_seqs <= max_num_batched_tokens of them, so none is ever left out.

*Prefill.*  The rest of the budget goes to prompts, running and waiting alike, in order.  A *long* prompt,
one with more than half of max_num_batched_tokens still to compute, leaves half of this rest to the short
ones of the same priority behind it; what they do not use it gets back.  So a short prompt starts in the
next step whatever is ahead of it, and a long one never gets less than half.

*Admission.*  A waiting request comes in with blocks for all its tokens at once, provided that, beside
other running sequences, one more block is left for each of them that can still grow (otherwise the next
decode would throw someone out again).  The first that has too few blocks or slots ends admission for
this step: nobody overtakes it for good.  Long ones that wait for their half, and those that wait for a
shared prefix, keep slots and blocks reserved while shorter ones pass.

*Shared prefixes are computed once.*  A waiting request whose next blocks are being computed by a running
one, at least an eighth of a step's budget of them, waits until they are there.  This cannot starve it: it
waits only for a sequence of the same or a more urgent priority that is running; each such sequence
gets its turn; when that is aborted or preempted, the waiting one is free to go, and it is ahead of all
that came later.

*Preemption.*  When a decode finds no block, the victim is, among the running sequences of the least urgent
priority, the one that is cheapest to recompute: it has the fewest computed tokens in blocks that no
other sequence holds; of equals, the last in order.  It may be the one that asked.  Its blocks stay cached
until they are needed, and it goes back to its place in the queue.

*Background work* (BACKGROUND_PRIORITY) fills what all others leave, and gives way to them: background.py.

*Progress.*  The first running sequence in order is never a victim.  If it finds no block, all others go, and
then the pool is its own, which is enough: its length is limited to the pool's, and it ends with "length"
there.  So the first in order always advances to its end; then another one is first.  A preempted one
stands in the queue before all that arrived later, and admission stops at it, so the number of sequences
that can finish before it is finite.

Two steps in flight
-------------------
While a step runs on a GPU the next one is planned and launched: ``schedule`` may be called once more before
``update`` of the step before, as long as the device runs steps in the order of their plans.  What is
answered to whom is the same as with one step at a time.

*Going on without the token.*  The second ``schedule`` takes it that the step in flight computes what it
was planned to.  Its samples get a *pending* token, which ``update`` puts in later; a decode that goes on
from it says which sample it is (``token_source``).  Positions, blocks and ends by length are known without
it, and nobody is scheduled beyond his last token.  Ends by anything else come to light in ``update``: the
sequence's entry in the step behind is then computed for nothing and its result ignored.

*Blocks* freed in ``update`` or by ``abort`` may be handed out in the next plan, as that runs later.  For
the same reason a sequence may be preempted while its step runs; the token it gets there is taken in.

*Nothing between steps in flight but the sequence itself.*  Blocks are recorded for sharing in ``update``,
and leaders are forked there (so a prompt with n > 1 pauses for a step).  So whatever fails in a step,
it can be run again as planned, for all sequences that still run; then the step behind it, likewise.  For
those that do not (they ended, or were preempted) the result is None.
"""

from __future__ import annotations

from bisect import insort

from inferx.engine.background import first_background, has_background, plan_with_background
from inferx.engine.block_pool import BlockAccountingError
from inferx.engine.config import SchedulerConfig
from inferx.engine.kv_manager import KVManager
from inferx.engine.prefill_plan import PrefillPlan
from inferx.engine.prefix_cache import root_digest
from inferx.engine.protocol import BACKGROUND_PRIORITY, EngineRequest, EngineStats, FinishReason
from inferx.engine.request import ORDER, Phase, Request, Sequence, Status, remove_ordered
from inferx.engine.scheduler_checks import check_books, check_request
from inferx.engine.scheduler_output import (
    PENDING_TOKEN,
    SampleError,
    ScheduledSequence,
    SchedulerOutput,
    SequenceUpdate,
)
from inferx.engine.token_run import TokenRun, take_run
from inferx.errors import InferxError, InvalidRequestError

__all__ = [
    "MAX_IN_FLIGHT",
    "QueueFullError",
    "SampleError",
    "ScheduledSequence",
    "Scheduler",
    "SchedulerOutput",
    "SequenceUpdate",
]

# What a step brings a sample; None: see ``Scheduler.update``.
StepResult = int | TokenRun | SampleError | None
# Steps that may be planned and not yet updated.
MAX_IN_FLIGHT = 2


class QueueFullError(InferxError):
    """``max_waiting`` requests are waiting already; try again later."""


class Scheduler:
    """See the module's docstring."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.kv = KVManager(
            config.num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching
        )
        self.requests: dict[str, Request] = {}
        self.running: list[Sequence] = []  # sorted by order
        self.waiting: list[Sequence] = []  # sorted by order
        self.held: dict[str, Sequence] = {}  # leaders that wait for ``release``, by request id
        self._in_flight: list[SchedulerOutput] = []  # planned, not updated; the oldest first
        self._num_arrived = 0
        self._stats = EngineStats(num_blocks=config.num_blocks)

    # Requests come and go

    def add_request(
        self,
        request: EngineRequest,
        prefix_key: str | None = None,
        adapter: str | None = None,
        *,
        held: bool = False,
    ) -> Request:
        """Queue a request.

        prefix_key: the model's ``prefix_cache_key``: prompts with different ones share no blocks.
        adapter: name and version of adapter weights, likewise.
        held: it takes part in nothing before ``release``, and is then where it would have been.
        Raises InvalidRequestError when it can never run, QueueFullError when the queue is full.
        """
        config = self.config
        if request.request_id in self.requests:
            raise InvalidRequestError(f"request_id must be new, got {request.request_id!r}, which is in use")
        check_request(request, config)
        self._check_room(request.priority)

        root = root_digest(cache_salt=request.cache_salt, adapter=adapter, model_key=prefix_key)
        priority = request.priority
        if config.policy == "fcfs" and priority != BACKGROUND_PRIORITY:
            priority = 0
        try:
            added = Request(request, root, priority, self._num_arrived, config.max_seq_len)
        except (OverflowError, TypeError) as e:
            raise InvalidRequestError(f"prompt token ids must be int32 integers: {e}", "prompt") from e
        self._num_arrived += 1
        if held:
            added.sequences[0].status = Status.HELD
            self.held[request.request_id] = added.sequences[0]
        else:
            insort(self.waiting, added.sequences[0], key=ORDER)
        self.requests[request.request_id] = added
        return added

    def release(self, request_id: str) -> None:
        """A held request may be scheduled; for others nothing happens."""
        seq = self.held.pop(request_id, None)
        if seq is not None:
            seq.status = Status.WAITING
            insort(self.waiting, seq, key=ORDER)

    def _check_room(self, priority: object) -> None:
        """QueueFullError when max_waiting requests wait beside those that there are places for.  Background
        work neither counts nor is refused: whoever sends it sees to it that it does not pile up."""
        most = self.config.max_waiting
        if most is None or priority == BACKGROUND_PRIORITY:
            return
        free = max(0, self.config.max_num_seqs - first_background(self.running))
        num_waiting = first_background(self.waiting) + len(self.held)
        if num_waiting - free >= most:
            raise QueueFullError(f"{num_waiting - free} requests wait already (max_waiting={most})")

    def abort(self, request_id: str) -> list[Sequence]:
        """End all samples of a request; returns those that were alive.  Unknown ids are ignored."""
        request = self.requests.get(request_id)
        if request is None:
            return []
        ended = request.live_sequences()
        for seq in ended:
            self._finish(seq, "abort")
        return ended

    def finish(
        self, request_id: str, index: int, reason: FinishReason, error: str | None = None
    ) -> Sequence | None:
        """End one sample (a stop string matched, the client lost interest, or it failed).

        Returns the sequence, or None when it is not alive (any more).
        """
        request = self.requests.get(request_id)
        if request is None or not 0 <= index < len(request.sequences):
            return None
        seq = request.sequences[index]
        if seq.finish_reason is not None:
            return None
        seq.error = error
        self._finish(seq, reason)
        return seq

    def has_unfinished(self) -> bool:
        return bool(self.requests)

    def stats(self) -> EngineStats:
        """A snapshot; its counters (prefix cache, preemptions, tokens, steps) never go back."""
        stats, pool = self._stats, self.kv.pool
        stats.num_running = sum(r.request.num_slots(r) for r in self.running)
        stats.num_waiting = len(self.waiting) + len(self.held)
        stats.num_free_blocks = pool.num_free
        stats.num_cached_blocks = pool.num_evictable
        stats.kv_cache_usage = pool.num_referenced / pool.num_blocks
        return EngineStats(*(getattr(stats, name) for name in stats.__struct_fields__))

    def reset_prefix_cache(self) -> None:
        """Forget all cached blocks that no running sequence holds (for measurements and tests)."""
        self.kv.drop_cached()

    def _finish(self, seq: Sequence, reason: FinishReason) -> None:
        seq.finish_reason = reason
        seq.drop_pending()
        request = seq.request
        live = request.live_sequences()
        if not request.forked and live:
            return  # the leader goes on computing the prompt for the others; an unborn one just never lives
        for ending in [seq] if request.forked else request.sequences:
            self._retire(ending)
        if not live:
            del self.requests[request.request_id]

    def _retire(self, seq: Sequence) -> None:
        """Take a sequence out of its queue and give its blocks back."""
        if seq.status is Status.RUNNING:
            # After an error, nobody shall find what may be wrong in the cache.
            self.kv.free(seq, keep=seq.finish_reason != "error")
            remove_ordered(self.running, seq)
        elif seq.status in (Status.WAITING, Status.PREEMPTED):
            remove_ordered(self.waiting, seq)
        elif seq.status is Status.HELD:
            del self.held[seq.request_id]
        seq.status = Status.FINISHED

    # Planning a step

    def schedule(self) -> SchedulerOutput:
        """Plan the next step; with one in flight, as if that had gone well (its plan may then be empty)."""
        if len(self._in_flight) == MAX_IN_FLIGHT:
            raise RuntimeError(f"schedule: {MAX_IN_FLIGHT} steps have not been handed to update")
        out = SchedulerOutput()
        candidates = self._go_on(out) if self._in_flight else self.running[:]
        if has_background(self.running) or has_background(self.waiting):
            plan_with_background(self, out, candidates)
        else:
            prefills = self._schedule_decodes(out, candidates)
            out.num_decodes = out.total_num_tokens = len(out.scheduled)
            if prefills or self.waiting:
                PrefillPlan(self, out, prefills, self.waiting).run()
        if len(out.scheduled) < len(self.running):
            placed = {id(e.seq) for e in out.scheduled}.union(map(id, out.ending), map(id, out.forking))
            out.scheduled_out = [seq for seq in self.running if id(seq) not in placed]
        out.block_copies = self.kv.take_copies()
        self._in_flight.append(out)
        return out

    def _go_on(self, out: SchedulerOutput) -> list[Sequence]:
        """Take the step in flight as done, its tokens pending; returns the running ones that can go on."""
        source = 0
        for entry in self._in_flight[0].scheduled:
            seq = entry.seq
            if seq.status is Status.RUNNING:
                seq.num_computed_tokens = entry.first_position + entry.num_tokens
                if entry.samples and seq.request.forked:
                    seq.token_ids.append(PENDING_TOKEN)
                    seq.token_source = source
                    if seq.is_ending:
                        out.ending.append(seq)
                elif entry.samples:
                    out.forking.append(seq)
            source += len(entry.samples)
        if not out.ending and not out.forking:
            return self.running[:]
        stay = {id(seq) for seq in (*out.ending, *out.forking)}
        return [seq for seq in self.running if id(seq) not in stay]

    def _schedule_decodes(self, out: SchedulerOutput, candidates: list[Sequence]) -> list[Sequence]:
        """Place all of the candidates that lack only their last token; returns the others."""
        prefills: list[Sequence] = []
        scheduled = out.scheduled
        running, decode = Status.RUNNING, Phase.DECODE
        for seq in candidates:
            if seq.status is not running:
                continue  # preempted a moment ago
            position = seq.num_computed_tokens
            missing = len(seq.token_ids) - position
            if missing > 1 or len(seq.token_ids) == seq.num_prompt_tokens:
                # A run of tokens (see token_run) may need more blocks; a prompt has had all from the start.
                if position + missing <= seq.writable_end or self._make_room(seq, out, missing):
                    prefills.append(seq)
            elif position < seq.writable_end or self._make_room(seq, out):
                scheduled.append(
                    ScheduledSequence(seq, position, 1, [seq], decode, seq.block_table, seq.token_source)
                )
        if out.preempted:
            prefills = [seq for seq in prefills if seq.status is running]
        return prefills

    def _make_room(self, seq: Sequence, out: SchedulerOutput, num_tokens: int = 1) -> bool:
        """Get blocks for the next tokens of ``seq``, preempting as needed; False when there are none."""
        while not self.kv.allocate_slots(seq, num_tokens):
            if len(self.running) == 1 and self.kv.has_pins:
                return False  # a step in flight still holds blocks
            victim = self._pick_victim(out)
            self._preempt(victim, out)
            if victim is seq:
                return False
        return True

    def _pick_victim(self, out: SchedulerOutput) -> Sequence:
        if out.ending:
            return out.ending[-1]  # needs its blocks no more, unless the step in flight fails
        if len(self.running) < 2:
            raise BlockAccountingError(f"{self.running} is alone and finds no block: blocks were lost")
        candidates = self.running[1:]  # the first in order is spared: see "Progress"
        lowest = candidates[-1].order[0]
        return min(
            (seq for seq in reversed(candidates) if seq.order[0] == lowest), key=self.kv.unshared_tokens
        )

    def _preempt(self, seq: Sequence, out: SchedulerOutput) -> None:
        # What the step in flight computes of it counts once that is over.
        steps = self._in_flight[:1]
        running = next((e.first_position for step in steps for e in step.scheduled if e.seq is seq), None)
        seq.recompute_end = max(seq.recompute_end, seq.num_computed_tokens if running is None else running)
        seq.num_preemptions += 1
        self._stats.num_preemptions += 1
        self.kv.free(seq)
        remove_ordered(self.running, seq)
        seq.status = Status.PREEMPTED
        insort(self.waiting, seq, key=ORDER)
        out.preempted.append(seq)
        out.scheduled[:] = [e for e in out.scheduled if e.seq is not seq]
        out.ending[:] = [s for s in out.ending if s is not seq]
        out.forking[:] = [s for s in out.forking if s is not seq]

    # After a step

    def update(self, output: SchedulerOutput, results: list[StepResult]) -> list[SequenceUpdate]:
        """Take in a step's results, one per sequence of ``output.samples``, in that order.

        A TokenRun is for sequences whose next step has not been planned.

        Results of sequences that ended meanwhile are ignored.  None: the step was run again, without this
        one as it runs no longer.  Returns what changed.
        """
        if not self._in_flight or output is not self._in_flight[0]:
            raise RuntimeError("update: output is not the oldest one in flight, or was handed in before")
        expected = sum(len(e.samples) for e in output.scheduled)
        if len(results) != expected:
            raise ValueError(f"results must have one entry per sample ({expected}), got {len(results)}")
        del self._in_flight[0]
        self.kv.finish_copies()
        self._stats.num_steps += 1
        updates = self._end_failed(output, results) if SampleError in map(type, results) else []
        place = 0
        running, decode, advance = Status.RUNNING, Phase.DECODE, self.kv.advance
        for entry in output.scheduled:
            seq, samples = entry.seq, entry.samples
            if seq.status is running:
                if entry.phase is decode:
                    seq.num_decode_steps += 1
                else:
                    self._count_prefill(entry)
                advance(seq, entry.first_position + entry.num_tokens)
                if samples and not seq.request.forked:
                    self._fork(seq)
                for sample, result in zip(samples, results[place : place + len(samples)], strict=True):
                    if sample.finish_reason is None:
                        updates.append(self._take_result(sample, result))
            elif seq.status is Status.PREEMPTED:
                updates += self._take_late(entry, results[place] if samples else None)
            place += len(samples)
        return updates

    def _end_failed(self, output: SchedulerOutput, results: list[StepResult]) -> list[SequenceUpdate]:
        """End the entries of which no sample succeeded, before anything they computed gets into the cache."""
        updates: list[SequenceUpdate] = []
        place = 0
        for entry in output.scheduled:
            live = [
                (seq, result)
                for seq, result in zip(
                    entry.samples, results[place : place + len(entry.samples)], strict=True
                )
                if seq.finish_reason is None
            ]
            if all(isinstance(result, SampleError) for _, result in live):
                updates += [self._take_result(seq, result) for seq, result in live]
            place += len(entry.samples)
        return updates

    def _take_late(self, entry: ScheduledSequence, result: StepResult) -> list[SequenceUpdate]:
        """The entry's sequence was preempted while its step ran: its K and V are lost, its token is not."""
        seq = entry.seq
        if entry.phase is Phase.DECODE:
            seq.num_decode_steps += 1
        else:
            self._count_prefill(entry)
        seq.recompute_end = max(seq.recompute_end, entry.first_position + entry.num_tokens)
        if seq.token_source is None:
            return []  # a chunk; or samples (n > 1) with nothing left to fork, which will be drawn again
        if result is None:
            seq.drop_pending()  # it will be drawn again, and be the same
            return []
        return [self._take_result(seq, result)]

    def _count_prefill(self, entry: ScheduledSequence) -> None:
        seq, first, end = entry.seq, entry.first_position, entry.first_position + entry.num_tokens
        again = max(0, min(end, seq.recompute_end) - first)
        seq.num_recomputed_tokens += again
        seq.num_computed_prompt_tokens += max(0, min(end, seq.num_prompt_tokens) - first - again)
        seq.num_prefill_chunks += 1
        if end == seq.num_prompt_tokens and seq.recompute_end < end:
            self._stats.prompt_tokens += seq.num_prompt_tokens

    def _take_result(self, seq: Sequence, result: StepResult) -> SequenceUpdate:
        if isinstance(result, TokenRun):
            return take_run(seq, result, self._take_result, self._finish)
        if isinstance(result, SampleError):
            seq.error = result.message
            self._finish(seq, "error")
            return SequenceUpdate(seq, None, "error", error=result.message)
        if result is None:
            raise ValueError(f"results must have a token or an error for {seq!r}, which runs")
        request, tokens = seq.request, seq.token_ids
        if seq.token_source is None:
            tokens.append(result)
        else:
            tokens[-1] = result
            seq.token_source = None
        self._stats.generation_tokens += 1
        num_output = len(tokens) - seq.num_prompt_tokens
        # Whether this token is the last depends on the sequence and the limits only, never on the batch.
        reason: FinishReason | None = "length" if num_output >= request.max_output_tokens else None
        if result in request.ending_token_ids and num_output >= request.min_tokens:
            reason = "stop"
            if result not in request.eos_token_ids:
                seq.stop_reason = result
        if reason is not None:
            self._finish(seq, reason)
        return SequenceUpdate(seq, result, reason, seq.stop_reason)

    def _fork(self, leader: Sequence) -> None:
        """The prompt is complete: every living sample goes its own way."""
        request = leader.request
        request.forked = True
        leader.token_ids = leader.token_ids[:]  # the unborn ones that ended keep the prompt alone
        for seq in request.sequences[1:]:
            if seq.finish_reason is not None:
                seq.status = Status.FINISHED
                continue
            self.kv.fork(leader, seq)
            seq.status = Status.RUNNING
            seq.recompute_end = leader.recompute_end
            seq.num_cached_tokens = leader.num_cached_tokens
            seq.num_computed_prompt_tokens = leader.num_computed_prompt_tokens
            seq.num_recomputed_tokens = leader.num_recomputed_tokens
            seq.num_prefill_chunks = leader.num_prefill_chunks
            seq.num_preemptions = leader.num_preemptions
            insort(self.running, seq, key=ORDER)
        if leader.finish_reason is not None:
            self._retire(leader)  # it was only carrying the prompt for the others

    def can_grow(self, seq: Sequence) -> bool:
        """Whether ``seq`` may come to need another block than it holds.  Its last token needs no K and V."""
        end = seq.num_prompt_tokens + seq.request.max_output_tokens
        return end - 1 > len(seq.block_table) * self.config.block_size

    def check_invariants(self) -> None:
        """Raise BlockAccountingError when the books do not balance.  For tests, between calls; O(pool)."""
        planned_ahead = len(self._in_flight) == MAX_IN_FLIGHT
        check_books(self, self._in_flight[:1] if planned_ahead else [])
