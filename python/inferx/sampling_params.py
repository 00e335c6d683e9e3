"""SamplingParams: how to choose the next token, and when to stop.  Field names follow vLLM's."""

from __future__ import annotations

from typing import Any

import msgspec

from inferx.errors import InvalidRequestError
from inferx.structured_outputs import StructuredOutputsParams

MAX_LOGPROBS = 20
MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256
MAX_STOP_TOKEN_IDS = 1024


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sampling options of one request.

    temperature: 0 is greedy; below 1e-5 is treated as 0.  top_k: 0 or -1 means all.  top_p in (0, 1];
    0 is refused.  min_p in [0, 1].  repetition_penalty > 0, over prompt and output.
    presence_penalty and frequency_penalty in [-2, 2], over the output only (OpenAI).
    seed: the same seed gives the same tokens whatever else is in the batch.
    logprobs: None for none, otherwise the number of alternatives (0 = the sampled token only);
    logprobs are of the raw model distribution, before penalties and temperature.
    prompt_logprobs: the same for the prompt's tokens.
    stop: text at which generation ends (not part of the answer unless include_stop_str_in_output).
    shown_special_token_ids: special tokens that are text all the same (marks that a parser looks for).
    min_tokens: no end or stop token, and no stop string, before that many tokens.
    structured_outputs: what the output must look like; an answer that is complete ends with "stop", whatever
    min_tokens and ignore_eos say.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    bad_words_token_ids: list[list[int]] | None = None  # filled by the front end from bad_words
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: list[str] = []
    stop_token_ids: list[int] = []
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    shown_special_token_ids: list[int] = []
    structured_outputs: StructuredOutputsParams | None = None
    eos_token_ids: list[int] = []  # filled by the front end: every end token the model declares

    def __post_init__(self) -> None:
        """One stop string may be given bare; None means none; any sequence becomes a list."""
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        for name in ("stop", "bad_words", "stop_token_ids", "eos_token_ids", "allowed_token_ids"):
            value = getattr(self, name)
            if value is None and name != "allowed_token_ids":
                setattr(self, name, [])
            elif isinstance(value, (tuple, set, frozenset, range)):
                setattr(self, name, list(value))

    @property
    def greedy(self) -> bool:
        return self.temperature < 1e-5

    def validate(self, vocab_size: int | None = None) -> None:
        """Raise InvalidRequestError naming the first field that is out of range."""
        _int("n", self.n, 1, MAX_N)
        _float("temperature", self.temperature, 0.0, 100.0)
        _int("top_k", self.top_k, -1, 2**31 - 1)
        _float("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _float("min_p", self.min_p, 0.0, 1.0)
        _float("repetition_penalty", self.repetition_penalty, 0.0, 100.0, low_open=True)
        _float("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _float("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.max_tokens is not None:
            _int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _int("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}",
                "min_tokens",
            )
        if self.seed is not None:
            _int("seed", self.seed, -(2**63), 2**63 - 1)
        if self.logprobs is not None:
            _int("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _int("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "include_stop_str_in_output", "detokenize", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequestError(
                    f"{name} must be true or false, got {_short(getattr(self, name))}", name
                )
        _texts("stop", self.stop, MAX_STOP_STRINGS)
        _texts("bad_words", self.bad_words, MAX_BAD_WORDS)
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True", "stop")
        if self.structured_outputs is not None:
            if not isinstance(self.structured_outputs, StructuredOutputsParams):
                raise InvalidRequestError(
                    "structured_outputs must be StructuredOutputsParams, got "
                    f"{_short(self.structured_outputs)}",
                    "structured_outputs",
                )
            self.structured_outputs.validate()
        self._validate_token_ids(vocab_size)

    def _validate_token_ids(self, vocab_size: int | None) -> None:
        high = 2**31 - 1 if vocab_size is None else vocab_size - 1
        _ids("stop_token_ids", self.stop_token_ids, high, MAX_STOP_TOKEN_IDS)
        _ids("shown_special_token_ids", self.shown_special_token_ids, high, MAX_STOP_TOKEN_IDS)
        if self.allowed_token_ids is not None:
            _ids("allowed_token_ids", self.allowed_token_ids, high, high + 1)
            if not self.allowed_token_ids:
                raise InvalidRequestError("allowed_token_ids must not be empty", "allowed_token_ids")
        if self.bad_words_token_ids is not None:
            for sequence in _list("bad_words_token_ids", self.bad_words_token_ids):
                _ids("bad_words_token_ids", sequence, high, high + 1)
                if not sequence:
                    raise InvalidRequestError(
                        "bad_words_token_ids must not have empty sequences", "bad_words_token_ids"
                    )
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise InvalidRequestError(
                    f"logit_bias must map token ids to numbers, got {_short(self.logit_bias)}", "logit_bias"
                )
            if len(self.logit_bias) > MAX_LOGIT_BIAS:
                raise InvalidRequestError(
                    f"logit_bias takes at most {MAX_LOGIT_BIAS} entries, got {len(self.logit_bias)}",
                    "logit_bias",
                )
            for t, bias in self.logit_bias.items():
                _int("logit_bias", t, 0, high)
                _float("logit_bias", bias, -100.0, 100.0)


def _short(value: object) -> str:
    """For messages: a caller's value may be of any length."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write integers of thousands of digits
        return f"a huge {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidRequestError(f"{name} must be a list, got {_short(value)}", name)
    return value


def _texts(name: str, value: object, count: int) -> None:
    texts = _list(name, value)
    if len(texts) > count:
        raise InvalidRequestError(f"{name} takes at most {count} strings, got {len(texts)}", name)
    for text in texts:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_STRING_CHARS:
            raise InvalidRequestError(
                f"{name} must have strings of 1 to {MAX_STOP_STRING_CHARS} characters, got {_short(text)}",
                name,
            )
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidRequestError(
                f"{name} must be text, got {_short(text)} with half a surrogate pair", name
            ) from None


def _ids(name: str, value: object, high: int, count: int) -> None:
    ids = _list(name, value)
    if len(ids) > count:
        raise InvalidRequestError(f"{name} takes at most {count} token ids, got {len(ids)}", name)
    for token in ids:
        _int(name, token, 0, high)


def _int(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(
            f"{name} must be an integer from {low} to {high}, got {_short(value)}", name
        )


def _float(name: str, value: object, low: float, high: float, *, low_open: bool = False) -> None:
    # Comparisons, not float(): an integer may be too large for one, and NaN fails them all.
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not ok or (low_open and value == low):
        bracket = "(" if low_open else "["
        raise InvalidRequestError(f"{name} must be in {bracket}{low}, {high}], got {_short(value)}", name)
