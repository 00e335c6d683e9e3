"""What a request must be to run at all, and whether the scheduler's books balance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inferx.engine.block_pool import BlockAccountingError
from inferx.engine.config import SchedulerConfig
from inferx.engine.protocol import BACKGROUND_PRIORITY, EngineRequest
from inferx.engine.request import ORDER, Status
from inferx.engine.scheduler_output import SchedulerOutput
from inferx.errors import InvalidRequestError

if TYPE_CHECKING:
    from inferx.engine.scheduler import Scheduler


def check_request(request: EngineRequest, config: SchedulerConfig) -> None:
    """InvalidRequestError when it could not run even if it were alone."""
    prompt_len, n, priority = len(request.prompt_token_ids), request.sampling_params.n, request.priority
    if prompt_len == 0:
        raise InvalidRequestError("prompt must have at least one token, got none", "prompt")
    room = 0 if request.pooling is not None else 1  # the token of a pooling request is dropped
    if prompt_len + room > config.max_model_len:
        raise InvalidRequestError(
            f"prompt and at least one generated token must fit in the context of {config.max_model_len} "
            f"tokens (max_model_len), got a prompt of {prompt_len} tokens",
            "prompt",
        )
    if prompt_len + room > config.pool_tokens:
        raise InvalidRequestError(
            f"prompt and at least one generated token must fit in the KV cache of {config.pool_tokens} "
            f"tokens ({config.num_blocks} blocks of {config.block_size}), "
            f"got a prompt of {prompt_len} tokens",
            "prompt",
        )
    if n > config.max_num_seqs:
        raise InvalidRequestError(f"n must be at most max_num_seqs ({config.max_num_seqs}), got {n}", "n")
    if not isinstance(priority, int) or priority > BACKGROUND_PRIORITY:
        raise InvalidRequestError(
            f"priority must be an integer of at most {BACKGROUND_PRIORITY}, got {priority!r}", "priority"
        )


def check_books(scheduler: Scheduler, steps: list[SchedulerOutput]) -> None:
    """Raise BlockAccountingError when they do not balance.

    steps: the step in flight, if the one behind it has been planned.
    """
    running, waiting = scheduler.running, scheduler.waiting
    for queue, states in (
        (running, (Status.RUNNING,)),
        (waiting, (Status.WAITING, Status.PREEMPTED)),
    ):
        if any(s.status not in states for s in queue) or sorted(queue, key=ORDER) != queue:
            raise BlockAccountingError(f"wrong state or order in {queue}")
    most = scheduler.config.max_num_seqs
    slots = sum(seq.request.num_slots(seq) for seq in running if not seq.is_ending)
    if slots > most:
        raise BlockAccountingError(f"{slots} slots in use, max_num_seqs is {most}")
    if any(seq.block_table for seq in waiting):
        raise BlockAccountingError("a waiting sequence holds blocks")
    queued = {id(seq) for seq in (*running, *waiting, *scheduler.held.values())}
    for request in scheduler.requests.values():
        live = request.live_sequences()
        leaders = live if request.forked else request.sequences[:1]
        if not live or any(id(seq) not in queued for seq in leaders):
            raise BlockAccountingError(f"request {request.request_id!r} is lost")
    if any(scheduler.requests.get(s.request_id) is not s.request for s in (*running, *waiting)):
        raise BlockAccountingError("a queued sequence belongs to no request")
    if not steps and any(s.token_source is not None for s in (*running, *waiting)):
        raise BlockAccountingError("a token is pending and no step brings it")
    scheduler.kv.check_invariants(running, {id(e.seq): e.first_position for s in steps for e in s.scheduled})
