"""Messages between the front end (server or ``LLM``) and the engine core.

msgspec structs: the same objects are passed by reference in-process and as msgpack between
processes.  No torch, no clock, no I/O.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from inferx.pooling_params import PoolingParams
from inferx.sampling_params import SamplingParams

# Of work that runs beside or instead of idle capacity only; what callers ask for stays below.
BACKGROUND_PRIORITY = 2**31 - 1

FinishReason = Literal["stop", "length", "abort", "error"]


class EngineRequest(msgspec.Struct, array_like=True):
    """One prompt, already tokenised and validated.

    ``request_id`` is unique in the engine.  With ``sampling_params.n > 1`` the core answers under
    one id with ``index`` 0..n-1.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float  # time.monotonic() of the front end; one machine, so one clock
    priority: int = 0  # lower runs first; BACKGROUND_PRIORITY or less
    cache_salt: str | None = None
    pooling: PoolingParams | None = None  # an embedding is wanted; sampling_params is for one token


class TokenLogprobs(msgspec.Struct, array_like=True):
    """Log-probabilities at one position.

    ``token_ids[0]`` is the token itself (sampled, or present in the prompt) with its rank among the
    vocabulary (1 = most likely); ``token_ids[1:]`` are the ``logprobs`` most likely ones, best first,
    so the token itself may be listed twice.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class RequestMetrics(msgspec.Struct):
    """Where a request's time went, in seconds.  The parts sum to ``e2e_time``.

    queue: arrival until first scheduled.  prefill: steps that computed prompt tokens for the first
    time.  decode: steps that produced one token each.  stall_preempted: evicted and waiting.
    stall_recompute: steps that recomputed tokens after a preemption.  stall_scheduled_out: admitted
    but left out of a step (token budget).
    """

    arrival_time: float = 0.0
    queue_time: float = 0.0
    prefill_time: float = 0.0
    decode_time: float = 0.0
    stall_preempted_time: float = 0.0
    stall_recompute_time: float = 0.0
    stall_scheduled_out_time: float = 0.0
    e2e_time: float = 0.0
    time_to_first_token: float | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0  # prompt tokens taken from the prefix cache at first admission
    num_computed_prompt_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_prefill_chunks: int = 0
    num_decode_steps: int = 0
    num_preemptions: int = 0


class EngineOutput(msgspec.Struct, array_like=True):
    """What one step produced for one sample of one request."""

    request_id: str
    index: int
    new_token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None  # one per new token
    # Position 0 has no predecessor and is None.  Sent once, with the first new token.
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None  # the stop token id, when one of stop_token_ids ended it
    error: str | None = None  # set when finish_reason == "error"
    metrics: RequestMetrics | None = None  # with the last output of each sample
    num_cached_tokens: int = 0
    embedding: bytes | None = None  # float32; of a pooling request, with its end
    ends_in_text: bool = False  # "stop" at a token that is part of the answer: a grammar is complete


class EngineStats(msgspec.Struct):
    """A snapshot after a step; counters grow, gauges do not."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0  # free, including cached but unreferenced (evictable) ones
    num_cached_blocks: int = 0  # unreferenced blocks whose content is still known
    kv_cache_usage: float = 0.0  # referenced blocks / all blocks
    prefix_cache_queries: int = 0  # tokens looked up
    prefix_cache_hits: int = 0  # tokens found
    num_preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    num_steps: int = 0
    # Of the model, which do not change: all, and those that one token computes with.
    total_parameters: int = 0
    active_parameters: int = 0
