"""The events of a response, from deltas however they are split."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferx.errors import RequestFailedError
from inferx.sampling_params import SamplingParams
from inferx.server.chat_core import ChatDelta, ToolCallDelta
from inferx.server.errors import bad_request
from inferx.server.protocol import parse_request
from inferx.server.responses_api.builder import Event, ResponseBuilder
from inferx.server.responses_api.protocol import ResponsesRequest
from inferx.server.responses_api.schemas import ResponseObject

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 2},
}


def make(**fields: Any) -> ResponseBuilder:
    body = parse_request(ResponsesRequest, {"input": "hi", **fields})
    return ResponseBuilder(body, "m", SamplingParams(), background=bool(body.background))


def play(deltas: list[ChatDelta], finish_reason: str = "stop", **fields: Any) -> list[Event]:
    """All events of a response; checks what holds for any."""
    builder = make(**fields)
    events = builder.start() + builder.begin()
    for delta in deltas:
        events += builder.advance(delta, [])
    events += builder.finish(finish_reason, USAGE, None)
    check(events)
    assert events[-1]["response"] == builder.response()
    return events


def check(events: list[Event]) -> None:
    """Numbers run on; every item and part begins, grows and ends in order; deltas join to what ends."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    texts: dict[str, str] = {}
    done: list[dict[str, Any]] = []
    open_item = open_part = None
    for event in events:
        kind = event["type"]
        if "output_index" in event:
            assert event["output_index"] == len(done)
        if kind == "response.output_item.added":
            assert open_item is None
            open_item = event["item"]["id"]
            assert event["item"]["status"] == "in_progress"
            texts[open_item] = ""
        elif kind == "response.output_item.done":
            item = event["item"]
            assert open_item == item["id"]
            assert open_part is None
            text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
            assert texts[open_item] == text
            done.append(item)
            open_item = None
        elif kind == "response.content_part.added":
            assert event["item_id"] == open_item
            assert event["part"]["text"] == ""
            open_part = event["part"]["type"]
        elif kind == "response.content_part.done":
            assert event["part"]["text"] == texts[event["item_id"]]
            open_part = None
        elif kind.endswith(".delta"):
            assert event["item_id"] == open_item
            texts[open_item] += event["delta"]
            assert open_part is None or kind == f"response.{open_part}.delta"
        elif kind.endswith(".done"):
            assert event.get("text", event.get("arguments")) == texts[event["item_id"]]
    assert events[-1]["response"]["output"] == done
    ResponseObject.model_validate(events[-1]["response"], strict=True)


def kinds(events: list[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_text() -> None:
    events = play([ChatDelta(0, content="a"), ChatDelta(0), ChatDelta(0, content="b", finish_reason="stop")])
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["completed_at"] is not None
    assert response["output"][0]["content"][0]["text"] == "ab"
    assert response["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 8,
    }
    assert events[0]["response"]["output"] == []  # earlier events do not change afterwards


def test_reasoning_text_and_calls_in_one_delta() -> None:
    calls = [
        ToolCallDelta(0, "call_a", "f", '{"x":'),
        ToolCallDelta(0, None, None, "1}"),
        ToolCallDelta(1, "call_b", "g", "{}"),
    ]
    events = play([ChatDelta(0, "t", "r", calls, finish_reason="tool_calls")], "tool_calls")
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "r"}]
    assert [(c["call_id"], c["name"], c["arguments"]) for c in output[2:]] == [
        ("call_a", "f", '{"x":1}'),
        ("call_b", "g", "{}"),
    ]
    assert kinds(events).count("function_call_arguments.delta") == 3
    assert kinds(events).count("function_call_arguments.done") == 2
    assert "reasoning_text.delta" in kinds(events)


def test_an_empty_answer_is_an_empty_message() -> None:
    events = play([ChatDelta(0, finish_reason="stop")])
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == ""
    assert "output_text.delta" not in kinds(events)


def test_cut_off() -> None:
    events = play([ChatDelta(0, tool_calls=[ToolCallDelta(0, "c", "f", '{"x')])], "length")
    response = events[-1]["response"]
    assert kinds(events)[-1] == "incomplete"
    assert response["status"] == "incomplete"
    assert response["completed_at"] is None
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert play([ChatDelta(0, reasoning="r")], "length")[-1]["response"]["output"][0]["type"] == "reasoning"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestFailedError("the forward pass failed"), "server_error"),
        (bad_request("no such thing", "x"), "invalid_prompt"),
        (ValueError("inside"), "server_error"),
    ],
)
@pytest.mark.parametrize("begun", [True, False])
def test_failure(error: Exception, code: str, begun: bool) -> None:
    builder = make()
    events = []
    if begun:
        events = builder.start() + builder.begin() + builder.advance(ChatDelta(0, content="a"), [])
    events += builder.fail(error)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert kinds(events)[0] == "created"
    assert kinds(events)[-1] == "failed"
    response = events[-1]["response"]
    assert response["error"]["code"] == code
    assert response["error"]["message"]
    assert "inside" not in response["error"]["message"]
    assert [item["status"] for item in response["output"]] == (["incomplete"] if begun else [])
    assert builder.finished


def test_background_and_cancel() -> None:
    builder = make(background=True)
    events = builder.start()
    assert kinds(events) == ["created", "queued"]
    assert [event["response"]["status"] for event in events] == ["queued", "queued"]
    events += builder.begin() + builder.advance(ChatDelta(0, content="a"), [])
    assert builder.response()["output"][0]["status"] == "in_progress"
    events += builder.cancel()
    assert events[-1]["response"]["status"] == builder.status == "cancelled"
    assert builder.response()["output"][0]["content"][0]["text"] == "a"


def test_logprobs_join_to_the_whole() -> None:
    builder = make(include=["message.output_text.logprobs"])
    events = builder.start() + builder.begin()
    entries = [{"token": t, "logprob": -1.0, "bytes": [], "top_logprobs": []} for t in "abc"]
    events += builder.advance(ChatDelta(0, content="a"), entries[:1])
    events += builder.advance(ChatDelta(0, content="b"), entries[1:2])
    events += builder.advance(ChatDelta(0), entries[2:])  # an end token has no text
    events += builder.finish("stop", USAGE, None)
    check(events)
    streamed = [e for event in events if event["type"].endswith("text.delta") for e in event["logprobs"]]
    assert streamed == entries == events[-1]["response"]["output"][0]["content"][0]["logprobs"]


def test_logprobs_wait_for_their_text_and_are_dropped_with_a_call() -> None:
    builder = make(include=["message.output_text.logprobs"])
    events = builder.start() + builder.begin()
    entries = [{"token": t, "logprob": -1.0, "bytes": [], "top_logprobs": []} for t in "abcd"]
    events += builder.advance(ChatDelta(0, reasoning="r"), entries[:1])
    events += builder.advance(ChatDelta(0), entries[1:2])
    events += builder.advance(ChatDelta(0, content="bc"), entries[2:3])
    events += builder.advance(ChatDelta(0, tool_calls=[ToolCallDelta(0, "c", "f", "{}")]), entries[3:])
    events += builder.finish("tool_calls", USAGE, None)
    check(events)
    message = events[-1]["response"]["output"][1]
    assert message["content"][0]["logprobs"] == entries[1:3]


@pytest.mark.parametrize(
    ("deltas", "count"),
    [
        ([ChatDelta(0, content="a", token_ids=[1]), ChatDelta(0, token_ids=[2])], 0),
        # <think>, r, </think>, a
        (
            [
                ChatDelta(0, token_ids=[1]),
                ChatDelta(0, reasoning="r", token_ids=[2, 3]),
                ChatDelta(0, token_ids=[4]),
                ChatDelta(0, content="a", token_ids=[5]),
                ChatDelta(0, content="b", token_ids=[6]),
            ],
            4,
        ),
        ([ChatDelta(0, reasoning="r", content="a", token_ids=[1, 2, 3])], 3),
        ([ChatDelta(0, reasoning="r", token_ids=[1]), ChatDelta(0, token_ids=[2])], 2),
    ],
)
def test_reasoning_tokens(deltas: list[ChatDelta], count: int) -> None:
    usage = play(deltas)[-1]["response"]["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": count}


parts = st.one_of(
    st.text(min_size=1, max_size=4).map(lambda t: ChatDelta(0, content=t)),
    st.text(min_size=1, max_size=4).map(lambda t: ChatDelta(0, reasoning=t)),
    st.just(ChatDelta(0)),
)


@settings(deadline=None)
@given(
    before=st.lists(parts, max_size=12),
    arguments=st.lists(st.lists(st.text(max_size=3), min_size=1, max_size=4), max_size=3),
    finish=st.sampled_from(["stop", "length", "tool_calls"]),
)
def test_any_course(before: list[ChatDelta], arguments: list[list[str]], finish: str) -> None:
    deltas = list(before)
    for index, pieces in enumerate(arguments):
        for i, piece in enumerate(pieces):
            first = i == 0
            part = ToolCallDelta(index, f"c{index}" if first else None, "f" if first else None, piece)
            deltas.append(ChatDelta(0, tool_calls=[part]))
    events = play(deltas, finish)
    output = events[-1]["response"]["output"]
    for field, kind in (("content", "message"), ("reasoning", "reasoning")):
        wanted = "".join(getattr(d, field) for d in before)
        assert "".join(i["content"][0]["text"] for i in output if i["type"] == kind) == wanted
    calls = [item for item in output if item["type"] == "function_call"]
    assert [call["arguments"] for call in calls] == ["".join(pieces) for pieces in arguments]
