"""Tools, structured output, reasoning and continued messages on the real model, with the official client."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pydantic
import pytest
from fake_server import wait_until
from real_server import RealServer

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]
EMOJI = "😀歪é👨‍👩‍👧 "
ASK = [{"role": "user", "content": "What is the weather in Paris, in Celsius?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 24},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CALL = (
    "<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Paris, \\"é\\" {", "unit": "celsius"}}'
    "\n</tool_call>"
)


class City(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=20)
    population: int = pydantic.Field(ge=0, le=99)
    size: Literal["small", "large"]


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    arguments = ("--max-num-seqs", "4", "--max-model-len", "2048", "--served-model-name", "m")
    server = RealServer(*arguments, "--tool-call-parser", "hermes", "--reasoning-parser", "think")
    yield server
    wait_until(server.idle, 10)
    assert server.stop() == 0
    assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def plain() -> Iterator[RealServer]:
    """As the model's template has it: neither calls nor reasoning are recognised."""
    server = RealServer("--max-num-seqs", "4", "--max-model-len", "2048", "--served-model-name", "m")
    yield server
    wait_until(server.idle, 10)
    assert server.stop() == 0


def client_of(server: RealServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def create(server: RealServer, **body: Any) -> Any:
    """The whole answer, after comparing it with a streamed one that the client has put together."""
    client = client_of(server)
    body = {"model": "m", "messages": ASK, "temperature": 0, "max_tokens": 120, **body}
    whole = client.chat.completions.create(**body)
    content, reasoning, finish, usage = "", "", None, None
    calls: list[list[str]] = []
    for chunk in client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **body):
        usage = chunk.usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            finish = choice.finish_reason or finish
            for part in choice.delta.tool_calls or []:
                assert part.function is not None
                if part.id is not None:
                    assert part.index == len(calls)
                    calls.append([part.function.name or "", ""])
                else:
                    assert part.function.name is None
                calls[part.index][1] += part.function.arguments or ""
    message = whole.choices[0].message
    assert (message.content or "") == content
    assert (getattr(message, "reasoning_content", None) or "") == reasoning
    assert [[c.function.name, c.function.arguments] for c in message.tool_calls or []] == calls
    assert whole.choices[0].finish_reason == finish
    assert usage is not None
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(usage, name) == getattr(whole.usage, name)
    return whole.choices[0]


# ---- tools


def test_named_function(plain: RealServer) -> None:
    choice = create(plain, tools=[WEATHER], tool_choice=NAMED)
    assert choice.finish_reason == "stop"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    for max_tokens in (1, 4, 9):
        cut = create(plain, tools=[WEATHER], tool_choice=NAMED, max_tokens=max_tokens)
        assert cut.finish_reason == "length"
        assert call.function.arguments.startswith(cut.message.tool_calls[0].function.arguments)


def test_required(plain: RealServer) -> None:
    now = {
        "type": "function",
        "function": {"name": "now", "parameters": {"type": "object", "properties": {}}},
    }
    body: dict[str, Any] = {"tools": [WEATHER, now], "tool_choice": "required", "parallel_tool_calls": False}
    choice = create(plain, **body)
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.function.name in ("get_weather", "now")
    assert isinstance(json.loads(call.function.arguments), dict)
    for max_tokens in (1, 6, 14):
        assert create(plain, **body, max_tokens=max_tokens).finish_reason == "length"


def forced(text: str) -> dict[str, Any]:
    """A grammar that leaves one answer."""
    return {"structured_outputs": {"grammar": "start: " + json.dumps(text, ensure_ascii=False)}}


def test_auto(server: RealServer) -> None:
    text = f"Let me look.\n{CALL}\n{CALL}"
    choice = create(server, tools=[WEATHER], extra_body=forced(text))
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me look."
    arguments = [call.function.arguments for call in choice.message.tool_calls]
    assert arguments == ['{"city": "Paris, \\"é\\" {", "unit": "celsius"}'] * 2
    cut = create(server, tools=[WEATHER], extra_body=forced(CALL), max_tokens=20)
    assert cut.finish_reason == "length"
    assert arguments[0].startswith(cut.message.tool_calls[0].function.arguments)
    none = create(server, tools=[WEATHER], tool_choice="none", extra_body=forced(CALL))
    assert (none.message.content, none.finish_reason) == (CALL, "stop")


def test_the_clients_own_tool_stream(plain: RealServer) -> None:
    """The client checks strict functions itself, and parses their arguments."""

    class GetCity(pydantic.BaseModel):
        city: City

    tool = openai.pydantic_function_tool(GetCity)
    body: Any = {"model": "m", "messages": ASK, "temperature": 0, "max_tokens": 200, "tools": [tool]}
    choice = {"type": "function", "function": {"name": "GetCity"}}
    whole = client_of(plain).chat.completions.parse(**body, tool_choice=choice)
    calls = whole.choices[0].message.tool_calls
    assert calls is not None
    assert isinstance(calls[0].function.parsed_arguments, GetCity)
    with client_of(plain).chat.completions.stream(**body, tool_choice=choice) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion().choices[0].message.tool_calls
    assert final is not None
    assert "tool_calls.function.arguments.done" in kinds
    assert final[0].function.parsed_arguments == calls[0].function.parsed_arguments


def test_results_go_back(plain: RealServer) -> None:
    call = create(plain, tools=[WEATHER], tool_choice=NAMED).message
    messages = [*ASK, call.model_dump(exclude_none=True)]
    messages.append({"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "Sunny, 21 degrees."})
    answer = create(plain, messages=messages, max_tokens=16)
    assert answer.message.content


# ---- structured output


def test_parsed_answer(plain: RealServer) -> None:
    body: Any = {"model": "m", "messages": ASK, "temperature": 0, "max_tokens": 200}
    answer = client_of(plain).chat.completions.parse(**body, response_format=City)
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, City)
    with client_of(plain).chat.completions.stream(**body, response_format=City) as stream:
        for _ in stream:
            pass
        assert stream.get_final_completion().choices[0].message.parsed == parsed


def test_response_formats(plain: RealServer) -> None:
    schema = City.model_json_schema()
    form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": schema}}
    choice = create(plain, response_format=form, max_tokens=300)
    assert choice.finish_reason == "stop"
    City.model_validate_json(choice.message.content)
    thing = create(plain, response_format={"type": "json_object"}, max_tokens=60)
    assert thing.message.content.lstrip().startswith("{")
    for extra, wanted in (
        ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
        ({"structured_outputs": {"regex": "[ab]"}}, {"a", "b"}),
    ):
        assert create(plain, extra_body=extra).message.content in wanted
    text = plain.complete("The colour:", structured_outputs={"choice": ["red", "blue"]})["choices"][0]["text"]
    assert text in ("red", "blue")


def test_an_answer_of_a_form_or_a_call(server: RealServer) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": City.model_json_schema()}}
    messages = [*ASK, {"role": "assistant", "content": "<think>No.</think>"}]
    tool = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    extra = {"continue_final_message": True}
    choice = create(server, messages=messages, tools=[tool], response_format=form, extra_body=extra)
    if choice.message.tool_calls:
        arguments = json.loads(choice.message.tool_calls[0].function.arguments)
        assert set(arguments) == {"city", "unit"}
    else:
        City.model_validate_json(choice.message.content)


# ---- reasoning


def test_reasoning(server: RealServer) -> None:
    choice = create(server, extra_body=forced("<think>\nHm, Paris.\n</think>\n\nSunny."))
    assert choice.message.reasoning_content == choice.message.reasoning == "Hm, Paris."
    assert choice.message.content == "Sunny."
    text = f"<think>\nI need a tool: {CALL}\n</think>\n\n{CALL}"
    choice = create(server, tools=[WEATHER], extra_body=forced(text))
    assert choice.message.reasoning_content.startswith("I need a tool: <tool_call>")
    assert len(choice.message.tool_calls) == 1
    assert choice.message.content is None
    never = create(server, extra_body=forced("<think>\nHm, Paris."))
    assert (never.message.reasoning_content, never.message.content) == ("Hm, Paris.", "")


def test_a_form_comes_behind_the_reasoning(server: RealServer) -> None:
    """The prefill opens the block; a bias makes the model close it."""
    close = server.tokenize("</think>")
    body = {
        "messages": [*ASK, {"role": "assistant", "content": "<think>Easy."}],
        "extra_body": {"continue_final_message": True, "structured_outputs": {"choice": ["red", "green"]}},
        "logit_bias": {str(token): 100 for token in close},
    }
    choice = create(server, **body)
    assert choice.message.content in ("red", "green")
    assert choice.finish_reason == "stop"


# ---- continued messages, log-probabilities


def test_a_continued_message_is_a_completion(plain: RealServer) -> None:
    messages = [*ASK, {"role": "assistant", "content": "The weather in Paris is"}]
    ids = plain.post("/tokenize", messages=messages, continue_final_message=True)["tokens"]
    wanted = plain.complete(ids, max_tokens=12)["choices"][0]["text"]
    choice = create(plain, messages=messages, max_tokens=12, extra_body={"continue_final_message": True})
    assert choice.message.content == wanted
    assert wanted.startswith(" ")


def test_log_probabilities(plain: RealServer) -> None:
    for top in (None, 3):
        body: dict[str, Any] = {"messages": ASK, "logprobs": True, "max_tokens": 8}
        if top is not None:
            body["top_logprobs"] = top
        whole = plain.post("/v1/chat/completions", **body)
        items = whole["choices"][0]["logprobs"]["content"]
        assert len(items) == whole["usage"]["completion_tokens"]
        chunks = plain.post("/v1/chat/completions", stream=True, **body)
        parts = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
        assert list(itertools.chain.from_iterable(p["content"] for p in parts)) == items
        for item in items:
            values = [t["logprob"] for t in item["top_logprobs"]]
            assert len(values) == (top or 0)
            assert values == sorted(values, reverse=True)
            if values:  # greedy: the sampled token is the best one
                best = item["top_logprobs"][0]
                assert (best["token"], best["logprob"]) == (item["token"], item["logprob"])
    assert plain.post("/v1/chat/completions", 400, messages=ASK, top_logprobs=3)["error"]["param"]


def test_log_probabilities_of_split_characters(plain: RealServer) -> None:
    text = EMOJI * 2
    body = {"messages": ASK, "max_tokens": 80, "logprobs": True, "top_logprobs": 5, **forced(text)}
    choice = plain.post("/v1/chat/completions", **body)["choices"][0]
    assert choice["message"]["content"] == text
    items = choice["logprobs"]["content"]
    assert bytes(itertools.chain.from_iterable(item["bytes"] for item in items)) == text.encode()
    for item in items:
        values = [t["logprob"] for t in item["top_logprobs"]]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
