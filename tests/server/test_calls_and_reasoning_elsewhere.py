"""Reasoning and calls of a model, as ``/v1/responses`` and ``/v1/messages`` tell of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from fake_engine import FakeEngine
from fake_server import ThreadServer

from inferx.server.args import ServerArgs

pytestmark = pytest.mark.timeout(60)
MODEL = "fake-model"
ANSWER = (
    "<think>\nlet me see 😀\n</think>\n\nI will ask."
    '<tool_call>\n{"name": "weather", "arguments": {"place": "Köln", "days": [1, 2]}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
PLACE = {"type": "object", "properties": {"place": {"type": "string"}}}
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
INPUTS = [{"place": "Köln", "days": [1, 2]}, {}]


@pytest.fixture(scope="module")
def calling() -> Iterator[ThreadServer]:
    server = ThreadServer(FakeEngine(), ServerArgs(tool_call_parser="hermes", reasoning_parser="think"))
    server.engine.answer = ANSWER
    yield server
    server.stop()


@pytest.fixture(scope="module")
def oai(calling: ThreadServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{calling.url}/v1", api_key="x", max_retries=0, timeout=20) as client:
        yield client


@pytest.fixture(scope="module")
def claude(calling: ThreadServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=calling.url, api_key="x", max_retries=0, timeout=20) as client:
        yield client


TOOLS: Any = [
    {"type": "function", "name": "weather", "parameters": PLACE},
    {"type": "function", "name": "time", "parameters": NO_ARGUMENTS},
]
CLAUDE_TOOLS: Any = [
    {"name": "weather", "input_schema": PLACE},
    {"name": "time", "input_schema": NO_ARGUMENTS},
]


def prompt_of(server: ThreadServer) -> str:
    engine = server.engine
    return engine.tokenizer.decode(engine.seen[-1][0], skip_special_tokens=False)


def plain(value: Any) -> Any:
    """Without ids, which differ, and without what the clients' streaming helpers add."""
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        left_out = ("id", "call_id", "parsed", "parsed_arguments", "parsed_output")
        return {name: plain(entry) for name, entry in value.items() if name not in left_out}
    return value


def without_ids(response: Any) -> Any:
    return plain([item.to_dict() for item in response.output])


def blocks(message: Any) -> Any:
    return plain([block.to_dict() for block in message.content])


def test_responses(calling: ThreadServer, oai: openai.OpenAI) -> None:
    arguments: Any = {"model": MODEL, "input": "hi", "tools": TOOLS}
    whole = oai.responses.create(**arguments)
    assert without_ids(whole) == [
        {
            "type": "reasoning",
            "status": "completed",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "let me see 😀"}],
        },
        {
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I will ask.", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "status": "completed",
            "name": "weather",
            "arguments": '{"place": "Köln", "days": [1, 2]}',
        },
        {"type": "function_call", "status": "completed", "name": "time", "arguments": "{}"},
    ]
    assert whole.usage is not None
    tokens = len(calling.engine.tokenizer.encode("<think>\nlet me see 😀\n</think>\n\n"))
    assert abs(whole.usage.output_tokens_details.reasoning_tokens - tokens) <= 1
    deltas: dict[str, str] = {}
    with oai.responses.stream(**arguments) as stream:
        for event in stream:
            if event.type.endswith(".delta"):
                found: Any = event
                deltas[found.item_id] = deltas.get(found.item_id, "") + found.delta
        final = stream.get_final_response()
    assert without_ids(final) == without_ids(whole)
    assert final.usage == whole.usage
    assert next(iter(deltas.values())) == "let me see 😀"
    assert [deltas[item.id] for item in final.output[2:]] == [  # type: ignore[index]
        '{"place": "Köln", "days": [1, 2]}',
        "{}",
    ]


def test_the_next_turn_of_a_response(calling: ThreadServer, oai: openai.OpenAI) -> None:
    first: Any = oai.responses.create(model=MODEL, input="hi", tools=TOOLS)
    outputs: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "fine"}
        for item in first.output
        if item.type == "function_call"
    ]
    oai.responses.create(model=MODEL, previous_response_id=first.id, input=outputs, tools=TOOLS)
    kept = prompt_of(calling)
    assert kept.count("<|im_start|>tool\nfine<|im_end|>") == 2
    # The same with the items sent back by the caller, as agents do it.
    given: Any = [{"role": "user", "content": "hi"}, *(item.to_dict() for item in first.output), *outputs]
    oai.responses.create(model=MODEL, input=given, tools=TOOLS)
    assert prompt_of(calling) == kept


def test_messages(calling: ThreadServer, claude: anthropic.Anthropic) -> None:
    arguments: Any = {
        "model": MODEL,
        "max_tokens": 300,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": CLAUDE_TOOLS,
    }
    whole: Any = claude.messages.create(**arguments)
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert whole.content[0].thinking == "let me see 😀"
    assert whole.content[1].text == "I will ask."
    assert [block.name for block in whole.content[2:]] == ["weather", "time"]
    assert [block.input for block in whole.content[2:]] == INPUTS
    assert whole.stop_reason == "tool_use"
    with claude.messages.stream(**arguments) as stream:
        kinds = [event.type for event in stream]
        final: Any = stream.get_final_message()
    assert blocks(final) == blocks(whole)
    assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)
    assert kinds.count("thinking") > 1
    assert kinds.count("input_json") > 2
    # The next turn.
    results: Any = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "fine"} for block in whole.content[2:]
    ]
    messages: Any = [
        *arguments["messages"],
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": results},
    ]
    claude.messages.create(**{**arguments, "messages": messages})
    assert prompt_of(calling).count("<|im_start|>tool\nfine<|im_end|>") == 2


def test_thinking_can_be_left_out(claude: anthropic.Anthropic) -> None:
    message: Any = claude.messages.create(
        model=MODEL,
        max_tokens=300,
        messages=[{"role": "user", "content": "hi"}],
        thinking={"type": "adaptive", "display": "omitted"},
    )
    assert message.content[0].type == "thinking"
    assert message.content[0].thinking == ""
    assert message.content[1].text.startswith("I will ask.")


@pytest.mark.parametrize("limit", range(1, 60, 4))
def test_cut_anywhere(oai: openai.OpenAI, claude: anthropic.Anthropic, limit: int) -> None:
    """Wherever max_tokens cuts, streamed and whole are equal, and nothing is called complete."""
    arguments: Any = {"model": MODEL, "input": "hi", "tools": TOOLS, "max_output_tokens": limit}
    whole = oai.responses.create(**arguments)
    last: Any = list(oai.responses.create(stream=True, **arguments))[-1]
    assert without_ids(last.response) == without_ids(whole)
    assert whole.status == last.response.status == "incomplete"
    arguments = {
        "model": MODEL,
        "max_tokens": limit,
        "messages": [{"role": "user", "content": "hi"}],
        "tools": CLAUDE_TOOLS,
    }
    message = claude.messages.create(**arguments)
    with claude.messages.stream(**arguments) as stream:
        final = stream.get_final_message()
    assert message.stop_reason == final.stop_reason == "max_tokens"
    assert blocks(final) == blocks(message)
