"""SamplingParams: what is accepted, and that every refusal names its field."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from inferx.errors import InvalidRequestError
from inferx.sampling_params import SamplingParams

VOCAB = 1000

HUGE = 10**5000

REFUSED: dict[str, list[Any]] = {
    "n": [0, 129, 1.0, True, "1", HUGE],
    "temperature": [-0.1, math.nan, math.inf, 101, "1", None, HUGE],
    "top_k": [-2, 2**31, 1.5],
    "top_p": [0.0, 1.0001, -0.5, math.nan],
    "min_p": [-0.1, 1.1],
    "repetition_penalty": [0.0, -1.0, math.inf],
    "presence_penalty": [2.1, -2.1],
    "frequency_penalty": [2.1, math.nan],
    "logit_bias": [
        *({VOCAB: -100.0}, {-1: 5.0}, {"abc": 1.0}, {7.0: 1.0}, {True: 1.0}),
        *({1: 101.0}, {1: 1e308}, {1: -1e308}, {1: math.nan}, {1: "5"}, {1: HUGE}),
        *([1], dict.fromkeys(range(1025), 0.0)),
    ],
    "allowed_token_ids": [[], [VOCAB], [-1], 3, [0] * (VOCAB + 1)],
    "stop_token_ids": [[VOCAB], [-1], [1.0], 5, [1] * 1025, [HUGE], HUGE],
    "stop": [[""], ["a"] * 17, ["a" * 1025], [3], 3, ["\ud800"]],
    "bad_words": [[""], ["a"] * 257, [None], "word", ["\udfff"]],
    "bad_words_token_ids": [[[]], [[VOCAB]], [3]],
    "seed": [2**63, -(2**63) - 1, 0.5, True],
    "max_tokens": [0, -1, 1.0],
    "min_tokens": [-1, 17],
    "logprobs": [-1, 21, True],
    "prompt_logprobs": [21],
    "ignore_eos": [1],
    "detokenize": [None],
    "skip_special_tokens": ["no"],
    "include_stop_str_in_output": [0],
}

ACCEPTED: dict[str, list[Any]] = {
    "n": [1, 128],
    "temperature": [0, 0.0, 1e-12, 100.0],
    "top_k": [-1, 0, 2**30],
    "top_p": [1, 1e-9],
    "min_p": [0, 1.0],
    "repetition_penalty": [1e-300, 100.0],
    "presence_penalty": [-2],
    "frequency_penalty": [2.0],
    "logit_bias": [{0: 100.0, 999: -100.0, 5: 1}, {}, None],
    "allowed_token_ids": [[0, 999], None],
    "stop_token_ids": [[0, 999], None],
    "stop": [None, "one", ("a", "b"), ["a" * 1024] * 16],
    "bad_words": [None, [" "]],
    "seed": [-(2**63), 2**63 - 1, None],
    "max_tokens": [None],
    "min_tokens": [16],
    "logprobs": [0, 20],
    "prompt_logprobs": [0],
    "ignore_eos": [True],
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    for value in REFUSED[name]:
        params = SamplingParams(**{name: value})
        with pytest.raises(InvalidRequestError, match=name) as caught:
            params.validate(VOCAB)
        assert caught.value.param == name
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str) -> None:
    for value in ACCEPTED[name]:
        params = SamplingParams(**{name: value})
        params.validate(VOCAB)
        # It survives the way to the engine process.
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_without_a_vocabulary_ids_are_bounded_all_the_same() -> None:
    SamplingParams(stop_token_ids=[2**31 - 1]).validate()
    with pytest.raises(InvalidRequestError):
        SamplingParams(stop_token_ids=[2**31]).validate()


def test_defaults_are_valid_and_not_shared() -> None:
    a, b = SamplingParams(), SamplingParams()
    a.validate(VOCAB)
    a.stop.append("x")
    a.eos_token_ids.append(3)
    assert (b.stop, b.eos_token_ids) == ([], [])


@pytest.mark.parametrize("name", ["stop", "bad_words", "stop_token_ids"])
def test_none_means_none(name: str) -> None:
    params = SamplingParams(**{name: None})
    assert getattr(params, name) == []


def test_a_bare_stop_string() -> None:
    assert SamplingParams(stop="END").stop == ["END"]


def test_stop_strings_need_text() -> None:
    with pytest.raises(InvalidRequestError, match="detokenize") as caught:
        SamplingParams(stop="END", detokenize=False).validate()
    assert caught.value.param == "stop"


def test_min_tokens_above_max_tokens() -> None:
    with pytest.raises(InvalidRequestError, match=r"at most max_tokens \(4\), got 5"):
        SamplingParams(max_tokens=4, min_tokens=5).validate()
    SamplingParams(max_tokens=None, min_tokens=5000).validate()


@pytest.mark.parametrize(
    ("temperature", "greedy"), [(0.0, True), (1e-12, True), (9.9e-6, True), (1e-5, False), (1.0, False)]
)
def test_greedy(temperature: float, greedy: bool) -> None:
    assert SamplingParams(temperature=temperature).greedy is greedy
