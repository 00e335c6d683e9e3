"""Matcher: where one sample stands in its grammar.

A token is *forced* when the grammar leaves only one text to go on with: then the tokens are those that the
tokenizer itself would use for that text, whatever the model says.  Such tokens come out of ``take`` together
with the sampled one before them (jump-ahead), or, where every token has to be sampled, one at a time under a
mask that allows nothing else.  Both give the same tokens: they come from the same queue.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher

from inferx.engine.structured.native import first_lines
from inferx.engine.structured.vocabulary import Vocabulary
from inferx.errors import CANNOT_GO_ON, InferxError
from inferx.sampling_params import SamplingParams

# In logit_bias: never.
BAN = -100.0
# Processor time that a sample's masks may take: at first, and more with every token.  Some ambiguous grammars
# cost more with each token, and a step waits for all of its masks.
FIRST_SECONDS = 0.1
SECONDS_PER_TOKEN = 0.004


class MatcherError(InferxError):
    """A sample cannot go on with its grammar."""


@dataclass(frozen=True, slots=True)
class Taken:
    """``token_ids``: the sampled token and those forced behind it.  ``complete``: the grammar ends."""

    token_ids: list[int]
    complete: bool


class Matcher:
    """For one sample; ``native`` is its own.  Methods raise MatcherError, and then always will."""

    def __init__(
        self, native: LLMatcher, vocabulary: Vocabulary, params: SamplingParams, *, jump_ahead: bool
    ) -> None:
        self._native = native
        self._vocabulary = vocabulary
        self._params = params
        self._jump = jump_ahead and may_jump(params)
        self._forced: deque[int] = deque()
        self._complete = False
        self._allowance = FIRST_SECONDS
        self._look_ahead()

    # ---- masks

    def fill_mask(self, row: np.ndarray) -> bool:
        """Set bit t of ``row`` (int32 [num_words]) for every token t that may come next; others are 0.

        Returns whether only end tokens may come: then ``min_tokens`` has nothing to say.
        """
        if self._forced:
            row[:] = 0
            _set_bits(row, [self._forced[0]])
            return False
        started = time.thread_time()
        self._native.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._charge(started)
        self._check()
        only_end = self._limit_end(row)
        banned = [t for t, bias in (self._params.logit_bias or {}).items() if bias <= BAN]
        _clear_bits(row, [t for t in banned if t < self._vocabulary.num_ids])
        return only_end

    def _limit_end(self, row: np.ndarray) -> bool:
        """Whether nothing but end tokens is left.  With ignore_eos they go while there is anything else."""
        eos = self._vocabulary.eos_token_ids
        if not any(row[t >> 5] >> (t & 31) & 1 for t in eos):
            return False
        before = row.copy()
        _clear_bits(row, eos)
        if not row.any():
            row[:] = before
            return True
        if not self._params.ignore_eos:
            row[:] = before
        return False

    # ---- tokens

    def take(self, token_id: int) -> Taken:
        """Go on by a sampled token; with jump-ahead, and by what is forced behind it."""
        taken = [token_id]
        self._consume(token_id)
        while self._jump and self._forced and not self._complete:
            forced = self._forced[0]
            self._consume(forced)
            taken.append(forced)
        return Taken(taken, self._complete)

    def _consume(self, token_id: int) -> None:
        if self._forced and self._forced.popleft() != token_id:
            raise MatcherError(f"token {token_id} does not follow the grammar, which forces another one")
        started = time.thread_time()
        if not self._native.consume_token(token_id):
            self._check()
            raise MatcherError(f"token {token_id} does not follow the grammar")
        self._complete = self._native.is_stopped()
        self._check()
        self._look_ahead()
        self._allowance += SECONDS_PER_TOKEN
        self._charge(started)

    def _charge(self, started: float) -> None:
        self._allowance -= time.thread_time() - started
        if self._allowance < 0:
            raise MatcherError(f"{CANNOT_GO_ON}: its masks take too much time")

    def _look_ahead(self) -> None:
        if self._forced or self._complete:
            return
        forced = self._native.compute_ff_tokens()
        # The library's word, and its tokenizer's, is not enough to go on without the model.
        if forced and self._native.validate_tokens(forced) == len(forced):
            self._forced.extend(forced)

    def _check(self) -> None:
        if self._native.is_error():
            raise MatcherError(f"{CANNOT_GO_ON}: {first_lines(self._native.get_error())}")


def may_jump(params: SamplingParams) -> bool:
    """Whether nothing but the grammar looks at a forced token: no log-probabilities, and no other rule that
    could forbid it (its sampling then fails, which nobody would notice)."""
    return (
        params.logprobs is None
        and params.allowed_token_ids is None
        and not params.bad_words_token_ids
        and not any(bias <= BAN for bias in (params.logit_bias or {}).values())
        and not (params.stop_token_ids and params.min_tokens)
    )


def _set_bits(row: np.ndarray, token_ids: Sequence[int]) -> None:
    bits = row.view(np.uint32)
    for t in token_ids:
        bits[t >> 5] |= np.uint32(1 << (t & 31))


def _clear_bits(row: np.ndarray, token_ids: Sequence[int]) -> None:
    bits = row.view(np.uint32)
    for t in token_ids:
        bits[t >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (t & 31)))
