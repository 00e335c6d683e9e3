"""Request and Sequence: what the scheduler knows of a prompt and of each sample drawn from it.

A request has ``n`` sequences.  Until the prompt is computed only its *leader* is scheduled, holding
slots for all; then every living sequence is sampled from the same logits row (the *fork*) and each goes
its own way, sharing the prompt's blocks.
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_left
from operator import attrgetter

from inferx.engine.block_pool import BlockAccountingError
from inferx.engine.prefix_cache import TOKEN_TYPECODE
from inferx.engine.protocol import EngineRequest, FinishReason


class Status(enum.Enum):
    """Where a sequence is.  It holds blocks only while RUNNING."""

    UNBORN = "unborn"  # waits for the leader to compute the prompt
    HELD = "held"  # for something that is not the scheduler's to say: see Scheduler.release
    WAITING = "waiting"  # never scheduled yet
    RUNNING = "running"
    PREEMPTED = "preempted"  # back in the waiting queue
    FINISHED = "finished"


class Phase(enum.Enum):
    """What a running sequence's step was spent on; see RequestMetrics."""

    PREFILL = "prefill"  # prompt tokens computed for the first time
    DECODE = "decode"
    RECOMPUTE = "recompute"  # starts with tokens that were computed before a preemption


# Order in which sequences are served: priority, arrival time, order of arrival, index of the sample.
Order = tuple[int, float, int, int]


class Sequence:
    """One sample.  ``token_ids`` is the prompt followed by the output; all lists grow at the end only,
    except that the last entry of ``block_table`` changes when the block is copied on write, and that the
    last of ``token_ids`` may be pending: PENDING_TOKEN until the step that samples it is updated.

    block_table: int32, entry i holds positions [i * block_size, (i + 1) * block_size).
    num_computed_tokens: leading tokens whose K and V are in those blocks, or will be once the steps in
    flight are over that were planned before the last one.
    Counters: num_cached_tokens (prompt tokens found in the prefix cache at the first admission),
    num_computed_prompt_tokens, num_recomputed_tokens, num_prefill_chunks (recompute chunks included),
    num_decode_steps, num_preemptions.  A fork starts with the leader's counters.
    """

    __slots__ = (
        "block_hashes",
        "block_table",
        "error",
        "finish_reason",
        "index",
        "known_cached_tokens",
        "num_awaited_blocks",
        "num_cached_tokens",
        "num_computed_prompt_tokens",
        "num_computed_tokens",
        "num_decode_steps",
        "num_preemptions",
        "num_prefill_chunks",
        "num_prompt_tokens",
        "num_recomputed_tokens",
        "num_registered_blocks",
        "order",
        "recompute_end",
        "request",
        "sample_state",
        "status",
        "stop_reason",
        "token_ids",
        "token_source",
        "writable_end",
    )

    def __init__(self, request: Request, index: int, token_ids: array[int], order: Order) -> None:
        self.request = request
        self.index = index
        self.order = order
        self.token_ids = token_ids
        self.num_prompt_tokens = len(token_ids)
        self.status = Status.WAITING if index == 0 else Status.UNBORN
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | None = None
        self.error: str | None = None
        # While the last of token_ids is pending: which sample of the step in flight it is.
        self.token_source: int | None = None

        self.block_table: array[int] = array("i")
        self.num_computed_tokens = 0
        # Positions below this one are in blocks that nobody else uses, as far as writing goes on.
        self.writable_end = 0
        self.block_hashes: list[bytes] = []  # of full blocks of token_ids, computed when asked for
        self.num_registered_blocks = 0  # leading blocks recorded in the prefix cache
        self.recompute_end = 0  # positions below this one were computed before
        self.known_cached_tokens = -1  # result of the last look-up while waiting; -1 before it
        self.sample_state: object = None  # of whoever samples; nothing to the scheduler
        self.num_awaited_blocks = 0  # leading blocks that another sequence is computing, if waited for

        self.num_cached_tokens = 0
        self.num_computed_prompt_tokens = 0
        self.num_recomputed_tokens = 0
        self.num_prefill_chunks = 0
        self.num_decode_steps = 0
        self.num_preemptions = 0

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :].tolist()

    @property
    def finished(self) -> bool:
        """Its answer is complete.  A leader may still be computing the prompt for the others."""
        return self.finish_reason is not None

    @property
    def is_ending(self) -> bool:
        """The step in flight samples its last token, whatever that is."""
        return self.token_source is not None and self.num_output_tokens >= self.request.max_output_tokens

    def drop_pending(self) -> None:
        """Forget the pending token; without one, nothing."""
        if self.token_source is not None:
            self.token_ids.pop()
            self.token_source = None

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request_id!r}, {self.index}, {self.status.value}, tokens={self.num_tokens}, "
            f"computed={self.num_computed_tokens})"
        )


class Request:
    """A prompt and its ``n`` sequences.

    root: the digest its prefixes start from.  number: how many requests came before.  max_seq_len: the
    longest prompt plus output that the engine allows.
    """

    __slots__ = (
        "ending_token_ids",
        "engine_request",
        "eos_token_ids",
        "forked",
        "max_output_tokens",
        "min_tokens",
        "root",
        "sequences",
    )

    def __init__(
        self, engine_request: EngineRequest, root: bytes, priority: int, number: int, max_seq_len: int
    ) -> None:
        self.engine_request = engine_request
        self.root = root
        params = engine_request.sampling_params
        self.eos_token_ids = frozenset() if params.ignore_eos else frozenset(params.eos_token_ids)
        self.ending_token_ids = self.eos_token_ids | frozenset(params.stop_token_ids)
        self.min_tokens = params.min_tokens
        room = max_seq_len - len(engine_request.prompt_token_ids)
        self.max_output_tokens = room if params.max_tokens is None else min(room, params.max_tokens)
        self.forked = params.n == 1
        prompt: array[int] = array(TOKEN_TYPECODE, engine_request.prompt_token_ids)
        # Unborn sequences see the leader's array (the prompt) and get their own at the fork.
        arrival = engine_request.arrival_time
        self.sequences = [Sequence(self, i, prompt, (priority, arrival, number, i)) for i in range(params.n)]

    @property
    def request_id(self) -> str:
        return self.engine_request.request_id

    def live_sequences(self) -> list[Sequence]:
        return [s for s in self.sequences if s.finish_reason is None]

    def num_slots(self, seq: Sequence) -> int:
        """Running slots that ``seq`` takes: before the fork the leader holds one for every living sample."""
        return 1 if self.forked else len(self.live_sequences())


# Queues are lists sorted by order.
ORDER = attrgetter("order")


def remove_ordered(queue: list[Sequence], seq: Sequence) -> None:
    """Take ``seq`` out of a list sorted by order."""
    i = bisect_left(queue, seq.order, key=ORDER)
    if i == len(queue) or queue[i] is not seq:
        raise BlockAccountingError(f"{seq!r} is not in its queue")
    del queue[i]
