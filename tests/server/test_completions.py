"""``/v1/completions`` over the scripted engine."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engine import FakeEngine


def joined(chunks: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(c["text"] for chunk in chunks for c in chunk["choices"] if c["index"] == index)


def test_answer_usage_and_latency_split(complete: Any, engine: FakeEngine) -> None:
    answer = complete(prompt="Hello", max_tokens=50)
    assert answer["object"] == "text_completion"
    assert answer["model"] == "fake-model"
    choice = answer["choices"][0]
    assert choice["text"] == "Hello world three four five"
    assert (choice["finish_reason"], choice["stop_reason"], choice["logprobs"]) == ("stop", None, None)
    num_tokens = len(engine.tokenizer.encode(engine.answer)) + 1
    assert answer["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": num_tokens,
        "total_tokens": num_tokens + 1,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    split = answer["metrics"]
    parts = [split[k] for k in ("queue_time", "prefill_time", "decode_time", "output_time")]
    assert sum(parts) + sum(split["stall_time"].values()) == pytest.approx(split["e2e_time"])
    assert (split["cached_prompt_tokens"], split["decode_steps"], split["preemptions"]) == (
        2,
        num_tokens - 1,
        0,
    )


@pytest.mark.parametrize("body", [{}, {"max_tokens": None}], ids=["omitted", "null"])
def test_max_tokens_defaults_to_16(complete: Any, engine: FakeEngine, body: dict[str, Any]) -> None:
    engine.script = lambda *_: [65]
    answer = complete(**body)
    assert answer["choices"][0]["text"] == "A" * 16
    assert answer["choices"][0]["finish_reason"] == "length"


def test_max_tokens_default_shrinks_to_the_room_left(complete: Any, engine: FakeEngine) -> None:
    engine.script = lambda *_: [65]
    answer = complete(prompt=[5] * 509)
    assert answer["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    "body",
    [{"max_tokens": -1}, {"max_tokens": "5"}, {"max_tokens": 0}, {"max_tokens": 2.5}, {"max_tokens": True}],
)
def test_bad_max_tokens_is_the_callers_error(complete: Any, body: dict[str, Any]) -> None:
    error = complete(expect=400, **body)["error"]
    assert error["param"] == "max_tokens"
    assert error["type"] == "invalid_request_error"


def test_streamed_text_equals_whole_text(complete: Any, engine: FakeEngine) -> None:
    engine.answer = "Hello wörld 😀歪é👨‍👩‍👧 three"
    whole = complete(max_tokens=200)["choices"][0]["text"]
    chunks = complete(max_tokens=200, stream=True)
    assert whole == engine.answer
    assert joined(chunks) == whole
    assert all("\ufffd" not in c["text"] for chunk in chunks for c in chunk["choices"])
    assert {c["id"] for c in chunks} == {chunks[0]["id"]}
    finishes = [c["choices"][0]["finish_reason"] for c in chunks]
    assert finishes == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1]["metrics"]["e2e_time"] == 0.007
    assert not any("usage" in c for c in chunks)


def test_usage_is_streamed_only_when_asked_for(complete: Any) -> None:
    usage = complete(n=2)["usage"]
    assert not any(c.get("usage") for c in complete(n=2, stream=True, stream_options={}))
    chunks = complete(n=2, stream=True, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == usage
    assert len(chunks[-1]["metrics"]["choices"]) == 2
    assert not any(c.get("usage") for c in chunks[:-1])
    assert usage["prompt_tokens"] == 1  # once, for both samples
    error = complete(expect=400, stream_options={"include_usage": True})["error"]
    assert error["param"] == "stream_options"


@pytest.mark.parametrize(
    "prompt",
    [["Hello", "Hello world"], [[72, 73], [74]], ["Hello", [65, 66]]],
    ids=["texts", "ids", "mixed"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_several_prompts_and_samples(complete: Any, engine: FakeEngine, prompt: Any, stream: bool) -> None:
    engine.script = lambda ids, params, index: [ids[0], 48 + index]
    answer = complete(prompt=prompt, n=2, max_tokens=2, stream=stream)
    if stream:
        texts = [joined(answer, i) for i in range(4)]
    else:
        assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
        texts = [c["text"] for c in answer["choices"]]
    firsts = [p[0] if isinstance(p, list) else engine.tokenizer.encode(p)[0] for p in prompt]
    names = [engine.tokenizer.decode([t]) for t in firsts]
    assert texts == [f"{name}{sample}" for name in names for sample in (0, 1)]


@pytest.mark.parametrize(
    "prompt",
    [None, "", [], [[]], ["x", ""], [1, "x"], [True], {"a": 1}, 5, [[1.5]], [[[1]]], [-1], [10**30], [99999]],
)
def test_malformed_prompts_are_the_callers_error(complete: Any, prompt: Any) -> None:
    assert complete(expect=400, prompt=prompt)["error"]["param"] == "prompt"


def test_echo_repeats_the_prompt(complete: Any) -> None:
    prompt = "Hello <|im_start|> world"
    assert complete(prompt=prompt, echo=True)["choices"][0]["text"] == prompt + "Hello world three four five"
    assert joined(complete(prompt=prompt, echo=True, stream=True)).startswith(prompt + "Hello")


def test_scoring_a_prompt(complete: Any) -> None:
    body = {"prompt": "Hello world three", "max_tokens": 0, "echo": True, "logprobs": 1}
    answer = complete(**body)
    choice = answer["choices"][0]
    assert choice["text"] == "Hello world three"
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert all(x == -4.0 for x in choice["logprobs"]["token_logprobs"][1:])
    chunks = complete(stream=True, **body)
    assert joined(chunks) == "Hello world three"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_stop_strings_never_show(complete: Any, engine: FakeEngine) -> None:
    engine.answer = "one two three four five"
    for stop in ("wo thr", ["xyz", "three"], "hre"):
        wanted = engine.answer[: engine.answer.find(stop if isinstance(stop, str) else "three")]
        whole = complete(stop=stop, max_tokens=60)["choices"][0]
        assert (whole["text"], whole["finish_reason"]) == (wanted, "stop")
        assert whole["stop_reason"] == (stop if isinstance(stop, str) else "three")
        chunks = complete(stop=stop, max_tokens=60, stream=True)
        assert joined(chunks) == wanted
    shown = complete(stop="three", include_stop_str_in_output=True, max_tokens=60)["choices"][0]["text"]
    assert shown == "one two three"


def test_token_ids_on_request(complete: Any, engine: FakeEngine) -> None:
    ids = [*engine.tokenizer.encode(engine.answer), engine.tokenizer.eos_token_ids[1]]
    choice = complete(return_token_ids=True)["choices"][0]
    assert (choice["token_ids"], choice["prompt_token_ids"]) == (ids, engine.tokenizer.encode("Hello"))
    chunks = complete(return_token_ids=True, stream=True)
    assert [t for c in chunks for t in c["choices"][0]["token_ids"]] == ids


def test_prompt_logprobs_have_vllms_shape(complete: Any) -> None:
    choice = complete(prompt=[65, 66, 10], prompt_logprobs=2)["choices"][0]
    first, second, third = choice["prompt_logprobs"]
    assert first is None
    assert second["66"] == {"logprob": -4.0, "rank": 3, "decoded_token": "B"}
    assert set(second) == {"66", "10", "11"}
    assert third["10"]["logprob"] == -4.0
    assert complete(expect=400, prompt_logprobs=2, stream=True)["error"]["param"] == "prompt_logprobs"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"lora_request": {"lora_name": "x"}}, "lora_request"),
        ({"prompt_embeds": "AAAA"}, "prompt_embeds"),
        ({"logits_processors": ["x"]}, "logits_processors"),
        ({"vllm_xargs": {"x": 1}}, "vllm_xargs"),
    ],
)
def test_unsupported_options_are_refused_not_ignored(complete: Any, body: dict[str, Any], param: str) -> None:
    assert complete(expect=400, **body)["error"]["param"] == param


def test_null_options_count_as_absent(complete: Any) -> None:
    names = (
        "suffix",
        "best_of",
        "logprobs",
        "stop",
        "seed",
        "n",
        "logit_bias",
        "stream",
        "stream_options",
        "echo",
    )
    assert complete(**dict.fromkeys(names))["choices"][0]["finish_reason"] == "stop"


class TestContextLength:
    def test_prompt_that_fills_the_context(self, complete: Any) -> None:
        for length in (512, 513):
            for stream in (False, True):
                error = complete(expect=400, prompt=[7] * length, max_tokens=1, stream=stream)["error"]
                assert error["code"] == "context_length_exceeded"
                assert "512" in error["message"]
                assert str(length) in error["message"]

    def test_room_for_exactly_one_token(self, complete: Any) -> None:
        answer = complete(prompt=[7] * 511, max_tokens=1)
        assert answer["usage"]["completion_tokens"] == 1
        assert answer["choices"][0]["finish_reason"] == "length"

    def test_output_that_does_not_fit(self, complete: Any) -> None:
        error = complete(expect=400, prompt=[7] * 8, max_tokens=505)["error"]
        assert error["param"] == "max_tokens"
        assert all(number in error["message"] for number in ("512", " 8 ", "505", "513"))
        assert complete(prompt=[7] * 8, max_tokens=504)["choices"]

    def test_huge_max_tokens(self, complete: Any) -> None:
        assert complete(expect=400, max_tokens=10**400)["error"]["param"] == "max_tokens"

    def test_text_that_cannot_fit_is_not_tokenised(self, complete: Any, engine: FakeEngine) -> None:
        error = complete(expect=400, prompt="a" * 50_000)["error"]
        assert error["code"] == "context_length_exceeded"
        longest = max(len(engine.tokenizer.token_bytes(i)) for i in range(engine.tokenizer.vocab_size))
        longest = max(longest, len("<|endoftext|>"))
        assert f"at least {-(-50_000 // longest)} tokens" in error["message"]
