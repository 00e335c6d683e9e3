"""Anthropic's messages as chat messages; tools and formats in the chat request's form."""

from __future__ import annotations

from typing import Any

import pytest

from inferx.server.anthropic.convert import PARAM_NAMES, chat_body
from inferx.server.anthropic.protocol import Conversation, MessagesRequest
from inferx.server.chat_extensions import renamed
from inferx.server.errors import ApiError, bad_request
from inferx.server.protocol import parse_request

USER = {"role": "user", "content": "hi"}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": [1, "ü"]}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "42"}


def converted(messages: Any = (USER,), **fields: Any) -> dict[str, Any]:
    body = {"messages": list(messages), "max_tokens": 9, **fields}
    return chat_body(parse_request(MessagesRequest, body))


def chat(*messages: Any, **fields: Any) -> list[dict[str, Any]]:
    return converted(messages, **fields)["messages"]


def error_of(*messages: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        converted(messages or (USER,), **fields)
    assert caught.value.status == 400
    assert len(caught.value.message) < 300
    return caught.value


def test_text() -> None:
    blocks = {
        "role": "user",
        "content": [{"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}],
    }
    assert chat(blocks, system="s") == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a\nb"},
    ]
    assert chat(USER, system=[{"type": "text", "text": "x"}, {"type": "text", "text": "y"}])[0] == {
        "role": "system",
        "content": "x\ny",
    }
    assert chat(USER, system="") == chat(USER, system=[]) == [USER]


def test_consecutive_messages_of_a_role_are_one_turn() -> None:
    one, two = {"role": "assistant", "content": "1"}, {"role": "assistant", "content": "2"}
    assert chat(USER, USER, one, two, USER) == [
        {"role": "user", "content": "hi\nhi"},
        {"role": "assistant", "content": "1\n2"},
        USER,
    ]


def test_tools_in_a_conversation() -> None:
    assistant = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "r", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "t"},
            USE,
            {**USE, "id": "t2", "input": {}},
        ],
    }
    results = {
        "role": "user",
        "content": [
            RESULT,
            {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "y"}]},
            {"type": "text", "text": "go on"},
        ],
    }
    assert chat(USER, assistant, results) == [
        USER,
        {
            "role": "assistant",
            "content": "t",
            "reasoning_content": "r",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a":[1,"ü"]}'}},
                {"id": "t2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "42"},
        {"role": "tool", "tool_call_id": "t2", "content": "y"},
        {"role": "user", "content": "go on"},
    ]
    bare = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": True}]}
    assert chat(USER, {"role": "assistant", "content": [USE]}, bare)[-1]["content"] == ""


def test_a_last_message_of_the_assistant_is_gone_on_with() -> None:
    data = converted([USER, {"role": "assistant", "content": "The answer is ("}])
    assert data["continue_final_message"] is True
    assert data["add_generation_prompt"] is False
    assert "continue_final_message" not in converted()


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "user", "content": [{"type": "image", "source": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "document"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [USE]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [7]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": ["text"]}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([], "messages"),
        ([{"role": "system", "content": "x"}], "messages"),
        ([{"role": "user", "content": [RESULT]}], "messages[0].content[0].tool_use_id"),
        ([USER, {"role": "assistant", "content": [USE]}], "messages"),
        ([USER, {"role": "assistant", "content": [{**USE, "input": "{}"}]}], "messages[1].content[0].input"),
        ([USER, {"role": "assistant", "content": [{**USE, "id": ""}]}], "messages[1].content[0].id"),
        ([USER, {"role": "assistant", "content": [{**USE, "name": 5}]}], "messages[1].content[0].name"),
        (
            [
                USER,
                {"role": "assistant", "content": [USE]},
                {"role": "user", "content": [{**RESULT, "content": [{"type": "image"}]}]},
            ],
            "messages[2].content[0].content[0].type",
        ),
    ],
)
def test_malformed_messages(messages: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        converted(messages)
    assert caught.value.param == param


TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}, "cache_control": {}}
F = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (None, {"tool_choice": "auto"}),
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"type": "tool", "name": "f", "disable_parallel_tool_use": False},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": True},
        ),
    ],
)
def test_tool_choice(choice: Any, wanted: dict[str, Any]) -> None:
    data = converted(tools=[TOOL], tool_choice=choice)
    assert data["tools"] == [F]
    assert {name: data[name] for name in wanted} == wanted
    assert ("parallel_tool_calls" in data) == ("parallel_tool_calls" in wanted)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "name": None}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
            "tool_choice.disable_parallel_tool_use",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"max_tokens": None}, "max_tokens"),
        ({"thinking": {"type": "hard"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "json"}}}, "output_config.format"),
        ({"stop_sequences": "x"}, "stop_sequences"),
    ],
)
def test_refused_fields(fields: dict[str, Any], param: str) -> None:
    assert error_of(**fields).param == param


def test_fields() -> None:
    data = converted(
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        stop_sequences=["x"],
        thinking={"type": "disabled"},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"},
        metadata={"user_id": "u"},
        service_tier="auto",
    )
    del data["messages"]
    assert data == {
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "stop": ["x"],
        "chat_template_kwargs": {"enable_thinking": False},
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": True},
        },
    }
    enabled = converted(thinking={"type": "enabled", "budget_tokens": 1024}, chat_template_kwargs={"x": 1})
    assert enabled["chat_template_kwargs"] == {"enable_thinking": True, "x": 1}
    assert "chat_template_kwargs" not in converted(thinking={"type": "adaptive"})
    plain = converted()
    assert converted(context_management={"edits": [{}]}, mcp_servers=[], cache_control={}) == plain


def test_a_count_needs_no_max_tokens() -> None:
    data = chat_body(parse_request(Conversation, {"messages": [USER]}))
    assert data == {"messages": [USER]}


def test_errors_are_renamed() -> None:
    for chat_name, name in (
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("tools[3].function.parameters.x", "tools[3].input_schema.x"),
        ("tools[3].function.name", "tools[3].name"),
        ("stop[1]", "stop_sequences[1]"),
        ("messages[7].content", "messages"),
        ("max_completion_tokens", "max_tokens"),
    ):
        error = renamed(bad_request(f"{chat_name} is bad", chat_name), PARAM_NAMES)
        assert (error.param, error.message) == (name, f"{name} is bad")
    other = bad_request("stop_token_ids is bad", "stop_token_ids")
    assert renamed(other, PARAM_NAMES) is other
