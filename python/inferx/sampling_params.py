"""SamplingParams: how to choose the next token, and when to stop.  Field names follow vLLM's."""

from __future__ import annotations

import math

import msgspec

from inferx.errors import InvalidRequestError

MAX_LOGPROBS = 20
MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 1024
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256


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
    min_tokens: no end or stop token, and no stop string, before that many tokens.
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
    eos_token_ids: list[int] = []  # filled by the front end: every end token the model declares

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        if self.stop is None:
            self.stop = []

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
        self._validate_stops()
        self._validate_token_ids(vocab_size)

    def _validate_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(
                f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}", "stop"
            )
        for s in self.stop:
            if not isinstance(s, str) or not s or len(s) > MAX_STOP_STRING_CHARS:
                raise InvalidRequestError(
                    f"stop strings must have 1 to {MAX_STOP_STRING_CHARS} characters, got {str(s)[:40]!r}",
                    "stop",
                )
        if self.stop and not self.detokenize:
            raise InvalidRequestError("stop strings need detokenize=True", "stop")
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise InvalidRequestError(
                f"bad_words takes at most {MAX_BAD_WORDS} entries, got {len(self.bad_words)}", "bad_words"
            )
        for w in self.bad_words:
            if not isinstance(w, str) or not w or len(w) > MAX_STOP_STRING_CHARS:
                raise InvalidRequestError(
                    f"bad_words entries must be strings of 1 to {MAX_STOP_STRING_CHARS} characters, "
                    f"got {str(w)[:40]!r}",
                    "bad_words",
                )

    def _validate_token_ids(self, vocab_size: int | None) -> None:
        high = 2**31 - 1 if vocab_size is None else vocab_size - 1
        for t in self.stop_token_ids:
            _int("stop_token_ids", t, 0, high)
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise InvalidRequestError("allowed_token_ids must not be empty", "allowed_token_ids")
            for t in self.allowed_token_ids:
                _int("allowed_token_ids", t, 0, high)
        if self.logit_bias:
            if len(self.logit_bias) > MAX_LOGIT_BIAS:
                raise InvalidRequestError(
                    f"logit_bias takes at most {MAX_LOGIT_BIAS} entries, got {len(self.logit_bias)}",
                    "logit_bias",
                )
            for t, bias in self.logit_bias.items():
                _int("logit_bias", t, 0, high)
                _float("logit_bias", bias, -100.0, 100.0)


def _int(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidRequestError(f"{name} must be an integer from {low} to {high}, got {value!r}", name)


def _float(name: str, value: object, low: float, high: float, *, low_open: bool = False) -> None:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or not (low < value if low_open else low <= value) or value > high:  # type: ignore[operator]
        bracket = "(" if low_open else "["
        raise InvalidRequestError(f"{name} must be in {bracket}{low}, {high}], got {value!r}", name)
