"""Tools in ``/v1/chat/completions`` over the scripted engine: modes, shapes, parallel calls, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine, tokenizer_json
from fake_server import ThreadServer, sse

from inferx.loader.tokenizer import Tokenizer
from inferx.server.args import ServerArgs

USER = {"role": "user", "content": "hi"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}},
            "required": ["city"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
ARGUMENTS = '{"city": "Paris – \\"{}\\"", "unit": "c"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "get_weather"}}


class Chat:
    """Posts to a server of its own; ``parts`` merges the chunks of a streamed answer."""

    def __init__(self, server: ThreadServer) -> None:
        self.engine = server.engine
        self.http = httpx.Client(base_url=server.url, timeout=20)

    def __call__(self, answer: str | None = None, expect: int = 200, **body: Any) -> Any:
        if answer is not None:
            self.engine.answer = answer
        body = {"messages": [USER], "temperature": 0, **body}
        response = self.http.post("/v1/chat/completions", json=body)
        assert response.status_code == expect, response.text
        return sse(response.text) if expect == 200 and body.get("stream") else response.json()

    def both(self, answer: str | None = None, **body: Any) -> dict[str, Any]:
        """The choice of a whole answer, after comparing it with a streamed one."""
        whole = self(answer, **body)
        chunks = self(answer, stream=True, stream_options={"include_usage": True}, **body)
        assert chunks[-1]["usage"] == whole["usage"]
        for choice in whole["choices"]:
            assert merged(chunks, choice["index"]) == shape(choice)
        return whole["choices"][0]


def merged(chunks: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """The answer that a client puts together, each call's id and name given exactly once."""
    text: dict[str, str] = {"content": "", "reasoning_content": "", "reasoning": ""}
    calls: list[list[Any]] = []
    finish = None
    for chunk in chunks:
        for choice in (c for c in chunk["choices"] if c["index"] == index):
            assert finish is None
            finish = choice["finish_reason"]
            for name in text:
                text[name] += choice["delta"].get(name) or ""
            for part in choice["delta"].get("tool_calls", []):
                if "id" in part:
                    assert part["index"] == len(calls)
                    assert part["type"] == "function"
                    calls.append([part["function"]["name"], ""])
                assert set(part["function"]) == ({"name", "arguments"} if "id" in part else {"arguments"})
                assert part["index"] == len(calls) - 1
                calls[-1][1] += part["function"]["arguments"]
    return {**text, "calls": [tuple(c) for c in calls], "finish_reason": finish}


def shape(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = message.get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    return {
        "content": message["content"] or "",
        "reasoning_content": message.get("reasoning_content", ""),
        "reasoning": message.get("reasoning", ""),
        "calls": [(c["function"]["name"], c["function"]["arguments"]) for c in calls],
        "finish_reason": choice["finish_reason"],
    }


@pytest.fixture(scope="module")
def hermes_server() -> Iterator[ThreadServer]:
    args = ServerArgs(tool_call_parser="hermes", reasoning_parser="think")
    server = ThreadServer(FakeEngine(max_model_len=2048), args)
    yield server
    server.stop()


@pytest.fixture
def hermes(hermes_server: ThreadServer) -> Chat:
    hermes_server.engine.reset()
    return Chat(hermes_server)


def test_auto(hermes: Chat) -> None:
    choice = hermes.both(CALL, tools=[WEATHER])
    message = choice["message"]
    assert message["content"] is None
    assert choice["finish_reason"] == "tool_calls"
    call = message["tool_calls"][0]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"] == {"name": "get_weather", "arguments": ARGUMENTS}


def test_text_and_parallel_calls(hermes: Chat) -> None:
    choice = hermes.both(f"Two of them.\n{CALL}\n{CALL.replace('get_weather', 'now')}", tools=[WEATHER, NOW])
    assert choice["message"]["content"] == "Two of them."
    names = [c["function"]["name"] for c in choice["message"]["tool_calls"]]
    assert names == ["get_weather", "now"]
    only = hermes.both(f"{CALL}\n{CALL}", tools=[WEATHER], parallel_tool_calls=False)
    assert len(only["message"]["tool_calls"]) == 1
    assert only["finish_reason"] == "tool_calls"


def test_no_tools_no_calls(hermes: Chat) -> None:
    for body in ({}, {"tools": []}, {"tools": [WEATHER], "tool_choice": "none"}):
        choice = hermes.both(CALL, **body)
        assert choice["message"]["content"] == CALL
        assert choice["finish_reason"] == "stop"
        assert "tool_calls" not in choice["message"]


def test_malformed_calls_are_content(hermes: Chat) -> None:
    text = "<tool_call>{'name': 'get_weather'}</tool_call>"
    choice = hermes.both(text, tools=[WEATHER])
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"


def test_cut_in_the_arguments(hermes: Chat) -> None:
    total = len(hermes.engine.tokenizer.encode(CALL))
    finished = []
    for max_tokens in range(1, total + 2):
        choice = hermes.both(CALL, tools=[WEATHER], max_tokens=max_tokens)
        calls = choice["message"].get("tool_calls", [])
        for call in calls:
            # Half a character at the end shows as U+FFFD, as in any text.
            assert ARGUMENTS.startswith(call["function"]["arguments"].rstrip("\ufffd"))
        finished.append(choice["finish_reason"])
    assert finished == ["length"] * total + ["tool_calls"]


def test_stop_string_inside_of_the_arguments(hermes: Chat) -> None:
    choice = hermes.both(CALL, tools=[WEATHER], stop=["Paris"])
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "'


def test_named(hermes: Chat) -> None:
    choice = hermes.both(ARGUMENTS, tools=[NOW, WEATHER], tool_choice=NAMED)
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "stop"
    function = choice["message"]["tool_calls"][0]["function"]
    assert function == {"name": "get_weather", "arguments": ARGUMENTS}
    cut = hermes.both(ARGUMENTS, tools=[WEATHER], tool_choice=NAMED, max_tokens=9)
    assert cut["finish_reason"] == "length"
    assert ARGUMENTS.startswith(cut["message"]["tool_calls"][0]["function"]["arguments"])


def schema_of(engine: FakeEngine) -> Any:
    params = engine.seen[-1][1].structured_outputs
    assert params is not None
    return json.loads(params.json)


def test_forced_calls_are_structured_output(make_server: Any) -> None:
    chat = Chat(make_server(ServerArgs(), FakeEngine()))  # a model whose template knows no calls
    chat(ARGUMENTS, tools=[WEATHER], tool_choice=NAMED)
    parameters = WEATHER["function"]["parameters"]
    assert schema_of(chat.engine) == {**parameters, "additionalProperties": False}
    chat("{}", tools=[NOW], tool_choice={"type": "function", "function": {"name": "now"}})
    assert schema_of(chat.engine) == {"type": "object", "properties": {}, "additionalProperties": False}
    answer = f'[{{"name": "get_weather", "parameters": {ARGUMENTS}}}]'
    choice = chat.both(answer, tools=[WEATHER, NOW], tool_choice="required")
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": ARGUMENTS}
    schema = schema_of(chat.engine)
    assert [c["properties"]["name"] for c in schema["items"]["anyOf"]] == [
        {"const": "get_weather"},
        {"const": "now"},
    ]
    assert "maxItems" not in schema
    chat(answer, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False)
    assert schema_of(chat.engine)["maxItems"] == 1
    cut = chat.both(answer, tools=[WEATHER], tool_choice="required", max_tokens=5)
    assert (cut["message"]["content"], cut["finish_reason"]) == ("", "length")


def test_tools_that_nobody_will_read_are_said_once(
    make_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    chat = Chat(make_server(ServerArgs(), FakeEngine()))
    for _ in range(2):
        assert chat.both(CALL, tools=[WEATHER])["message"]["content"] == CALL
    assert [r for r in caplog.messages if "--tool-call-parser" in r] == [caplog.messages[-1]]


def test_references_inside_of_parameters_still_hold(make_server: Any) -> None:
    chat = Chat(make_server(ServerArgs(), FakeEngine()))
    parameters = {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/Node"}},
        "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
    }
    tree = {"type": "function", "function": {"name": "tree", "parameters": parameters}}
    chat("[]", tools=[NOW, tree], tool_choice="required")
    place = "#/items/anyOf/1/properties/parameters/$defs/Node"
    assert json.dumps(schema_of(chat.engine)).count(place) == 2


def test_allowed_tools(hermes: Chat) -> None:
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "now"}}]},
    }
    hermes(CALL, tools=[WEATHER, NOW], tool_choice=choice)
    prompt = hermes.engine.tokenizer.decode(hermes.engine.seen[-1][0], skip_special_tokens=False)
    assert "TOOLS now<" in prompt


def test_strict_functions_are_enforced_by_a_structural_tag(hermes: Chat) -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    hermes(CALL, tools=[strict, NOW])
    params = hermes.engine.seen[-1][1].structured_outputs
    assert params is not None
    assert '<tool_call>\\n{\\"name\\": \\"get_weather\\"' in params.structural_tag
    hermes(CALL, tools=[WEATHER, NOW])
    assert hermes.engine.seen[-1][1].structured_outputs is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "<|im_end|>"}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "x" * 129}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "f", "description": 5}}]}, "tools[0].function.description"),
        ({"tools": [{"function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
        ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools[0].function.parameters.type",
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"properties": []}}}]},
            "tools[0].function.parameters.properties",
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"x": json.loads("[" * 150 + "]" * 150)}}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [NOW, NOW]}, "tools[1].function.name"),
        ({"tools": [NOW] * 257}, "tools"),
        ({"tools": [NOW], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": 5}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": NAMED}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tools": [NOW], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        (
            {"tools": [NOW], "tool_choice": "required", "response_format": {"type": "json_object"}},
            "response_format",
        ),
        (
            {
                "tools": [
                    NOW,
                    {"function": {"name": "f", "parameters": {"properties": {"a": {"type": "x"}}}}},
                ],
                "tool_choice": "required",
            },
            "tools[1].function.parameters",
        ),
    ],
)
def test_invalid_tools(hermes: Chat, body: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        error = hermes(expect=400, stream=stream, **body)["error"]
        assert error["param"] == param
        assert error["message"]
    assert not hermes.engine.seen


def test_calls_and_results_are_rendered(hermes: Chat) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
    ]
    assert hermes(messages=messages, tools=[WEATHER])["choices"]
    prompt = hermes.engine.tokenizer.decode(hermes.engine.seen[-1][0], skip_special_tokens=False)
    assert "<|im_start|>tool\nsunny" in prompt
    for role in ("user", "tool"):
        bad = [{"role": role, "content": "x", "tool_calls": [call]}]
        assert hermes(expect=400, messages=bad)["error"]["param"] == "messages[0].tool_calls"


# ---- marks that are special tokens


MISTRAL_TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}{{ '[TOOL_CALLS]'[:0] }}"
)


def special_tokenizer(*marks: str, template: str) -> Tokenizer:
    description = json.loads(tokenizer_json())
    first = max(t["id"] for t in description["added_tokens"]) + 1
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    description["added_tokens"] += [
        {"id": first + i, "content": mark, "special": True, **flags} for i, mark in enumerate(marks)
    ]
    eos = [t["id"] for t in description["added_tokens"] if t["content"] in ("<|endoftext|>", "<|im_end|>")]
    return Tokenizer(json.dumps(description), eos_token_ids=eos, chat_template=template)


def test_special_marks_are_seen_and_never_shown(make_server: Any) -> None:
    tokenizer = special_tokenizer("[TOOL_CALLS]", "[ARGS]", "<think>", "</think>", template=MISTRAL_TEMPLATE)
    engine = FakeEngine(tokenizer=tokenizer)
    chat = Chat(make_server(ServerArgs(reasoning_parser="think"), engine))
    choice = chat.both("<think>hm</think>Well.[TOOL_CALLS]get_weather[ARGS]" + ARGUMENTS, tools=[WEATHER])
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Well.")
    call = message["tool_calls"][0]
    assert call["function"] == {"name": "get_weather", "arguments": ARGUMENTS}
    assert len(call["id"]) == 9
    assert call["id"].isalnum()
    assert choice["finish_reason"] == "tool_calls"
    # Not a call: the mark is gone, as any special token, and all else is there.
    broken = chat.both("[TOOL_CALLS] so [ARGS]what</think>[TOOL_CALLS]", tools=[WEATHER])
    assert broken["message"]["content"] == " so what"
    shown = chat.both("[TOOL_CALLS] so", tools=[WEATHER], skip_special_tokens=False)
    assert shown["message"]["content"] == "[TOOL_CALLS] so"
    # Log-probabilities of all tokens, and offsets that agree with the text.
    answer = chat(
        "Well.[TOOL_CALLS]get_weather[ARGS]{}", tools=[WEATHER], logprobs=True, return_token_ids=True
    )
    tokens = [t["token"] for t in answer["choices"][0]["logprobs"]["content"]]
    assert len(tokens) == len(answer["choices"][0]["token_ids"])
    assert "[TOOL_CALLS]" in tokens
