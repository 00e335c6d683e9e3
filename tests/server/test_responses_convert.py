"""Items of a response's input as chat messages; tools and formats in the chat request's form."""

from __future__ import annotations

from typing import Any

import pytest

from inferx.server.chat_extensions import renamed
from inferx.server.errors import ApiError, bad_request
from inferx.server.protocol import parse_request
from inferx.server.responses_api.convert import (
    PARAM_NAMES,
    chat_body,
    check_calls,
    messages,
    tools_and_choice,
)
from inferx.server.responses_api.items import input_items
from inferx.server.responses_api.protocol import ResponsesRequest


def call(call_id: str = "c1", arguments: str = '{"a":1}', name: str = "f") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def output(call_id: str = "c1", text: Any = "42") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def chat(value: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    return messages(instructions, input_items(value))


def error_of(function: Any, *args: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        function(*args)
    assert caught.value.status == 400
    return caught.value


def test_text_is_a_users_message() -> None:
    assert chat("hi") == [{"role": "user", "content": "hi"}]


def test_instructions_lead_and_take_in_a_system_message() -> None:
    system, user = {"role": "developer", "content": "b"}, {"role": "user", "content": "c"}
    assert chat([system, user], "a") == [{"role": "system", "content": "a\n\nb"}, user]
    assert chat([user, system], "a") == [
        {"role": "system", "content": "a"},
        user,
        {"role": "system", "content": "b"},
    ]
    assert chat([system, user]) == [{"role": "system", "content": "b"}, user]


def test_a_turn_of_reasoning_text_and_calls_is_one_message() -> None:
    items = [
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "r"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "t"}],
        },
        call("c1"),
        call("c2", "{}"),
        output("c1"),
        output("c2", [{"type": "input_text", "text": "4"}, {"type": "input_text", "text": "2"}]),
        {"role": "assistant", "content": "done"},
    ]
    assert chat(items) == [
        {"role": "user", "content": "x\ny"},
        {
            "role": "assistant",
            "content": "t",
            "reasoning_content": "r",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "tool", "tool_call_id": "c2", "content": "4\n2"},
        {"role": "assistant", "content": "done"},
    ]


def test_turns_begin_anew_where_they_cannot_go_on() -> None:
    assistant = {"role": "assistant", "content": "a"}
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}
    assert chat([assistant, assistant]) == [assistant, assistant]
    assert chat([assistant, reasoning]) == [
        assistant,
        {"role": "assistant", "content": "", "reasoning_content": "s"},
    ]
    assert [m["role"] for m in chat([call("c1"), reasoning, call("c2")])] == ["assistant", "assistant"]


def test_items_are_kept_with_ids_and_parts() -> None:
    kept = input_items(["hi"][0])[0]
    assert kept["content"] == [{"type": "input_text", "text": "hi"}]
    assert kept["id"].startswith("msg_")
    assert kept["status"] == "completed"
    given = input_items([{"role": "assistant", "content": "x", "id": "mine"}, call(), output()])
    assert given[0]["id"] == "mine"
    assert given[0]["content"] == [{"type": "output_text", "text": "x", "annotations": []}]
    assert [item["id"].split("_")[0] for item in given[1:]] == ["fc", "fco"]
    assert input_items(given) == given  # what is listed can be sent again


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, "input"),
        ([], "input"),
        (5, "input"),
        ([5], "input[0]"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "tool", "content": "x"}], "input[0].role"),
        ([{"role": ["user"], "content": "x"}], "input[0].role"),
        ([{"type": "image_generation_call"}], "input[0].type"),
        ([{"type": {}}], "input[0].type"),
        ([{"type": "item_reference", "id": "x"}], "input[0].type"),
        (["hi"], "input[0]"),
        (
            [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
            "input[0].content[0].type",
        ),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": [7]}], "input[0].content[0].type"),
        ([{"role": "user", "content": "x", "id": ""}], "input[0].id"),
        ([{"role": "user", "content": "x", "id": "x" * 1000}], "input[0].id"),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], "input[0].call_id"),
        ([{"type": "function_call", "call_id": "c", "arguments": "{}"}], "input[0].name"),
        ([{"type": "function_call", "call_id": "c", "name": "f"}], "input[0].arguments"),
        ([{"type": "function_call_output", "call_id": "c"}], "input[0].output"),
        ([{"type": "reasoning", "summary": [{"type": "summary_text"}]}], "input[0].summary[0].text"),
    ],
)
def test_malformed_items(value: Any, param: str) -> None:
    error = error_of(input_items, value)
    assert error.param == param
    assert len(error.message) < 300


def test_too_many_items() -> None:
    error = error_of(input_items, [{"role": "user", "content": "x"}] * 10_001)
    assert error.param == "input"
    assert "10000" in error.message
    assert "10001" in error.message


def test_outputs_answer_calls_before_them() -> None:
    check_calls(input_items([call(), output()]), 0)
    check_calls(input_items([output("old"), call(), output()]), 1)  # history was checked in its time
    assert error_of(check_calls, input_items([output(), call()]), 0).param == "input[0].call_id"
    assert error_of(check_calls, input_items([call("a"), output("b")]), 1).param == "input[0].call_id"


FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
OTHER = {"type": "function", "name": "g", "parameters": None, "strict": None}
F = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
G = {"type": "function", "function": {"name": "g"}}


def test_tools() -> None:
    assert tools_and_choice([], None) == ([], "auto")
    assert tools_and_choice([FUNCTION, OTHER], "required") == ([F, G], "required")
    named = {"type": "function", "name": "g"}
    assert tools_and_choice([FUNCTION, OTHER], named) == (
        [F, G],
        {"type": "function", "function": {"name": "g"}},
    )
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [named]}
    assert tools_and_choice([FUNCTION, OTHER], allowed) == ([G], "required")


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([{"type": "web_search"}], None, "tools[0].type"),
        ([5], None, "tools[0].type"),
        ([FUNCTION, {"type": "function"}], None, "tools[1].name"),
        ([], "required", "tool_choice"),
        ([FUNCTION], "any", "tool_choice"),
        ([FUNCTION], 5, "tool_choice"),
        ([FUNCTION], {"type": "function", "name": "g"}, "tool_choice.name"),
        ([FUNCTION], {"type": "function"}, "tool_choice.name"),
        ([FUNCTION], {"type": "file_search"}, "tool_choice"),
        ([FUNCTION], {"type": "allowed_tools", "mode": "any", "tools": [FUNCTION]}, "tool_choice.mode"),
        ([FUNCTION], {"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
        ([FUNCTION], {"type": "allowed_tools", "mode": "auto", "tools": [5]}, "tool_choice.tools[0].name"),
    ],
)
def test_malformed_tools(tools: Any, choice: Any, param: str) -> None:
    assert error_of(tools_and_choice, tools, choice).param == param


def body(**fields: Any) -> ResponsesRequest:
    return parse_request(ResponsesRequest, {"input": "hi", **fields})


def converted(**fields: Any) -> dict[str, Any]:
    request = body(**fields)
    request.check()
    return chat_body(request, input_items(request.input))


def test_fields() -> None:
    assert converted() == {"messages": [{"role": "user", "content": "hi"}]}
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    data = converted(
        max_output_tokens=7,
        parallel_tool_calls=False,
        temperature=0.5,
        top_k=3,
        stop="x",
        seed=1,
        text={"format": schema},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        reasoning={"effort": "low", "summary": "auto"},
        metadata={"a": "b"},
        user="u",
    )
    del data["messages"]
    assert data == {
        "max_completion_tokens": 7,
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_k": 3,
        "stop": "x",
        "seed": 1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        "logprobs": True,
        "top_logprobs": 2,
        "reasoning_effort": "low",
    }
    assert converted(reasoning={"effort": "none"}, chat_template_kwargs={"x": 1})["chat_template_kwargs"] == {
        "enable_thinking": False,
        "x": 1,
    }
    assert converted(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    assert "response_format" not in converted(text={"format": {"type": "text"}})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": [{}]}, "context_management"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": 5}}, "text.format"),
        ({"include": ["nonsense"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"background": True, "store": False}, "background"),
        ({"stream_options": {}}, "stream_options"),
        ({"truncation": "middle"}, "truncation"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata (a key)"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"k": 5}}, "metadata.k"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"previous_response_id": ""}, "previous_response_id"),
    ],
)
def test_refused_fields(fields: dict[str, Any], param: str) -> None:
    error = error_of(lambda: converted(**fields))
    assert error.param == param


def test_errors_are_renamed() -> None:
    error = bad_request("max_completion_tokens must be at least 1", "max_completion_tokens", "code")
    named = renamed(error, PARAM_NAMES)
    assert (named.message, named.param, named.code) == (
        "max_output_tokens must be at least 1",
        "max_output_tokens",
        "code",
    )
    inner = renamed(bad_request("messages[3].content: must be x", "messages[3].content"), PARAM_NAMES)
    assert (inner.message, inner.param) == ("input: must be x", "input")
    for chat_name, name in (
        ("response_format.json_schema.schema", "text.format.schema"),
        ("response_format.type", "text.format.type"),
        ("tools[12].function.parameters", "tools[12].parameters"),
        ("messages", "input"),
    ):
        nested = renamed(bad_request(f"{chat_name} is bad", chat_name), PARAM_NAMES)
        assert (nested.param, nested.message) == (name, f"{name} is bad")
    for other_name in ("temperature", "tools", "max_completion_tokens_"):
        other = bad_request("must be x", other_name)
        assert renamed(other, PARAM_NAMES) is other
