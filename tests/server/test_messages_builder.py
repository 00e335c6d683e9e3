"""The events of a message, from deltas however they are split, as Anthropic's client puts them together."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from inferx.server.anthropic.builder import MessageBuilder, parse_input
from inferx.server.anthropic.schemas import Message
from inferx.server.chat_core import ChatDelta, ToolCallDelta

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 2},
}
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def play(
    deltas: list[ChatDelta], finish: str = "stop", stop: int | str | None = None, **options: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All events of a message and the message; checks that the client makes the same of the events."""
    builder = MessageBuilder("m", ["STOP"], **options)
    events = builder.start(USAGE)
    for delta in deltas:
        events += builder.advance(delta)
    events += builder.finish(finish, stop, USAGE)
    message = builder.message(USAGE)
    Message.model_validate(message, strict=True)
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in json.loads(json.dumps(events)):
        if event["type"] != "ping":
            parsed = EVENT.validate_python(event)
            snapshot = accumulate_event(event=parsed, current_snapshot=snapshot, json_bufs=buffers)
    read = snapshot.to_dict()
    zip(read["content"], message["content"], strict=True)
    assert [
        {k: block.get(k) for k in ours}
        for block, ours in zip(read["content"], message["content"], strict=True)
    ] == message["content"]
    for name in ("id", "stop_reason", "stop_sequence", "usage", "model", "role", "type"):
        assert read[name] == message[name]
    return events, message


def test_text() -> None:
    events, message = play([ChatDelta(0, content="a"), ChatDelta(0), ChatDelta(0, content="b")])
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert message["content"] == [{"type": "text", "text": "ab"}]
    assert message["stop_reason"] == "end_turn"
    assert message["usage"] == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 2,
        "output_tokens": 3,
    }


def test_thinking_text_and_calls_in_one_delta() -> None:
    calls = [
        ToolCallDelta(0, "a", "f", '{"x":'),
        ToolCallDelta(0, arguments="1}"),
        ToolCallDelta(1, "b", "g", "{}"),
    ]
    _, message = play([ChatDelta(0, "t", "r", calls)])
    assert message["content"] == [
        {"type": "thinking", "thinking": "r", "signature": ""},
        {"type": "text", "text": "t"},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
        {"type": "tool_use", "id": "b", "name": "g", "input": {}},
    ]
    assert message["stop_reason"] == "tool_use"
    _, hidden = play([ChatDelta(0, "t", "r")], show_thinking=False)
    assert hidden["content"][0] == {"type": "thinking", "thinking": "", "signature": ""}


@pytest.mark.parametrize(
    ("finish", "stop", "used_up", "reason", "sequence"),
    [
        ("stop", None, False, "end_turn", None),
        ("stop", 7, False, "end_turn", None),
        ("stop", "STOP", False, "stop_sequence", "STOP"),
        ("stop", "other", False, "end_turn", None),
        ("length", None, False, "max_tokens", None),
        ("length", None, True, "model_context_window_exceeded", None),
        ("stop", None, True, "end_turn", None),
    ],
)
def test_stop_reasons(finish: str, stop: Any, used_up: bool, reason: str, sequence: str | None) -> None:
    _, message = play([ChatDelta(0, content="a")], finish, stop, room_used_up=used_up)
    assert message["stop_reason"] == reason
    assert message["stop_sequence"] == sequence


def test_a_named_tool_is_a_tool_use_although_the_chat_api_says_stop() -> None:
    _, message = play([ChatDelta(0, tool_calls=[ToolCallDelta(0, "a", "f", "{}")])], "stop")
    assert message["stop_reason"] == "tool_use"


def test_empty() -> None:
    _, message = play([ChatDelta(0)])
    assert message["content"] == []


def test_a_call_that_was_cut_off() -> None:
    _, message = play(
        [ChatDelta(0, tool_calls=[ToolCallDelta(0, "a", "f", '{"x": 1, "y": [2, "th')])], "length"
    )
    assert message["stop_reason"] == "max_tokens"
    assert message["content"][0]["input"]["x"] == 1
    assert parse_input("") == parse_input("[1]") == parse_input("nonsense") == {}


parts = st.one_of(
    st.text(min_size=1, max_size=4).map(lambda t: ChatDelta(0, content=t)),
    st.text(min_size=1, max_size=4).map(lambda t: ChatDelta(0, reasoning=t)),
    st.just(ChatDelta(0)),
)
scalars = st.one_of(st.integers(-5, 5), st.text(max_size=4), st.booleans(), st.none())
objects = st.dictionaries(st.text(max_size=3), scalars, max_size=3)


@settings(deadline=None)
@given(
    before=st.lists(parts, max_size=12),
    inputs=st.lists(objects, max_size=3),
    size=st.integers(1, 7),
    finish=st.sampled_from(["stop", "length", "tool_calls"]),
)
def test_any_course(before: list[ChatDelta], inputs: list[dict[str, Any]], size: int, finish: str) -> None:
    deltas = list(before)
    for index, value in enumerate(inputs):
        text = json.dumps(value, ensure_ascii=False)
        for at in range(0, len(text), size):
            first = at == 0
            part = ToolCallDelta(
                index, f"c{index}" if first else None, "f" if first else None, text[at : at + size]
            )
            deltas.append(ChatDelta(0, tool_calls=[part]))
    _, message = play(deltas, finish)
    for field, kind, name in (("content", "text", "text"), ("reasoning", "thinking", "thinking")):
        wanted = "".join(getattr(d, field) for d in before)
        assert "".join(b[name] for b in message["content"] if b["type"] == kind) == wanted
    assert [b["input"] for b in message["content"] if b["type"] == "tool_use"] == inputs
