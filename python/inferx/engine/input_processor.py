"""From a caller's prompt and options to an EngineRequest: every check that needs no engine state."""

from __future__ import annotations

import time

import msgspec

from inferx.engine.bad_words import encode_bad_words
from inferx.engine.protocol import EngineRequest
from inferx.errors import InvalidRequestError
from inferx.loader.tokenizer import Tokenizer
from inferx.pooling_params import PoolingParams
from inferx.sampling_params import SamplingParams


class InputProcessor:
    """Validates and completes requests for one model.

    vocab_size: width of the logits.  max_model_len: prompt plus output, in tokens.  max_num_seqs: most
    samples that run at once, so the most that one request may ask for.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        max_model_len: int,
        max_num_seqs: int,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.max_num_seqs = max_num_seqs
        self.eos_token_ids = sorted(set(eos_token_ids) | set(tokenizer.eos_token_ids))

    def make_request(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        arrival_time: float | None = None,
    ) -> EngineRequest:
        """Raise InvalidRequestError naming the field, or return the request for the engine."""
        if not isinstance(params, SamplingParams):
            raise InvalidRequestError(
                f"sampling_params must be SamplingParams, got {type(params).__name__}", "sampling_params"
            )
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise InvalidRequestError(f"priority must be an integer, got {priority!r}", "priority")
        if cache_salt is not None and not isinstance(cache_salt, str):
            raise InvalidRequestError(f"cache_salt must be a string, got {cache_salt!r}", "cache_salt")
        self.check_prompt(prompt_token_ids)
        params.validate(self.vocab_size)
        params = msgspec.structs.replace(params, eos_token_ids=self.eos_token_ids)
        if params.bad_words:
            params.bad_words_token_ids = encode_bad_words(params.bad_words, self.tokenizer)
        if params.n > self.max_num_seqs:
            raise InvalidRequestError(
                f"n must be at most max_num_seqs ({self.max_num_seqs}), got {params.n}", "n"
            )
        if params.structured_outputs is not None:
            params.structured_outputs = params.structured_outputs.normalised()
        _check_allowed_tokens(params)
        room = self.max_model_len - len(prompt_token_ids)
        if params.max_tokens is None or params.max_tokens > room:
            params.max_tokens = room
            params.min_tokens = min(params.min_tokens, room)
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            sampling_params=params,
            arrival_time=time.monotonic() if arrival_time is None else arrival_time,
            priority=priority,
            cache_salt=cache_salt,
        )

    def make_pooling_request(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        pooling: PoolingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        arrival_time: float | None = None,
    ) -> EngineRequest:
        """The same for an embedding of the prompt."""
        if not isinstance(pooling, PoolingParams):
            raise InvalidRequestError(
                f"pooling_params must be PoolingParams, got {type(pooling).__name__}", "pooling_params"
            )
        self.check_prompt(prompt_token_ids, room=0)
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=prompt_token_ids,
            sampling_params=SamplingParams(temperature=0.0, max_tokens=1, detokenize=False),
            arrival_time=time.monotonic() if arrival_time is None else arrival_time,
            priority=priority,
            cache_salt=cache_salt,
            pooling=pooling,
        )

    def check_prompt(self, prompt_token_ids: list[int], room: int = 1) -> None:
        """The prompt has tokens, all in the vocabulary, and leaves room for that many more."""
        if not prompt_token_ids:
            raise InvalidRequestError("prompt must have at least one token, got none", "prompt")
        if len(prompt_token_ids) > self.max_model_len and room == 0:
            raise InvalidRequestError(
                f"prompt has {len(prompt_token_ids)} tokens; the context holds {self.max_model_len}", "prompt"
            )
        if len(prompt_token_ids) + room > self.max_model_len:
            raise InvalidRequestError(
                f"prompt has {len(prompt_token_ids)} tokens; the context of {self.max_model_len} tokens "
                "must hold the prompt and at least one generated token",
                "prompt",
            )
        low, high = min(prompt_token_ids), max(prompt_token_ids)
        if low < 0 or high >= self.vocab_size:
            bad = low if low < 0 else high
            raise InvalidRequestError(
                f"prompt token ids must be from 0 to {self.vocab_size - 1}, got {bad}", "prompt"
            )


def _check_allowed_tokens(params: SamplingParams) -> None:
    """Some allowed token must be possible as the first one, whatever the model says."""
    if params.allowed_token_ids is None:
        return
    banned = {ids[0] for ids in params.bad_words_token_ids or [] if len(ids) == 1}
    if params.min_tokens > 0:
        banned.update(params.stop_token_ids, params.eos_token_ids)
    if banned.issuperset(params.allowed_token_ids):
        raise InvalidRequestError(
            "allowed_token_ids must leave a token that bad_words and min_tokens (no end token yet) do not "
            f"exclude, got {params.allowed_token_ids[:10]}",
            "allowed_token_ids",
        )
