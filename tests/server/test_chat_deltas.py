"""Deltas join to the whole answer, and usage is equal, whatever is combined."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from fake_engine import FakeEngine
from fake_server import ThreadServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_chat_tools import CALL, WEATHER, Chat, merged, shape

from inferx.server.args import ServerArgs

PIECES = st.sampled_from(
    [
        "<think>",
        "</think>",
        CALL,
        "<tool_call>",
        "</tool_call>",
        '{"name": "get_weather", "arguments": {"city": "Osaka 大阪"}}',
        '{"a": [1, 2',
        "Hello world",
        "three",
        " é😀\n",
        "\n\n",
        "}",
    ]
)


@pytest.fixture(scope="module")
def chat() -> Iterator[Chat]:
    engine = FakeEngine(max_model_len=4096)
    server = ThreadServer(engine, ServerArgs(tool_call_parser="hermes", reasoning_parser="think"))
    yield Chat(server)
    server.stop()


def logprob_tokens(chunks: list[dict[str, Any]], index: int) -> list[Any]:
    parts = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return [token for part in parts if part for token in part["content"]]


def token_ids(chunks: list[dict[str, Any]], index: int) -> list[int]:
    parts = [c.get("token_ids", []) for chunk in chunks for c in chunk["choices"] if c["index"] == index]
    return [token for part in parts for token in part]


@given(
    text=st.lists(PIECES, min_size=1, max_size=6).map("".join),
    n=st.sampled_from([1, 3]),
    tools=st.sampled_from([None, "auto", "none", "named", "required"]),
    logprobs=st.sampled_from([None, 0, 2]),
    stop=st.sampled_from([None, ["three"], ["}}\n", "Hello"]]),
    max_tokens=st.sampled_from([None, 3, 40]),
    single=st.booleans(),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_deltas_join_to_the_whole_answer(
    chat: Chat,
    text: str,
    n: int,
    tools: str | None,
    logprobs: int | None,
    stop: list[str] | None,
    max_tokens: int | None,
    single: bool,
) -> None:
    tokenizer = chat.engine.tokenizer
    ids = tokenizer.encode(text)

    def script(prompt: list[int], params: Any, index: int) -> list[int]:
        # Samples of different lengths, so that they end in different steps.
        cut = random.Random(index).randint(1, len(ids)) if index else len(ids)
        return [*ids[:cut], tokenizer.eos_token_ids[1]]

    chat.engine.script = script
    body: dict[str, Any] = {"n": n, "temperature": 1.0, "return_token_ids": True}
    if tools is not None:
        named = {"type": "function", "function": {"name": "get_weather"}}
        body |= {"tools": [WEATHER], "tool_choice": named if tools == "named" else tools}
        body["parallel_tool_calls"] = not single
    if logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": logprobs}
    if stop is not None:
        body["stop"] = stop
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    whole = chat(**body)
    chunks = chat(stream=True, stream_options={"include_usage": True}, **body)
    assert chunks[-1]["usage"] == whole["usage"]
    assert all(chunk.get("usage") is None for chunk in chunks[:-1])
    assert whole["usage"]["completion_tokens"] == sum(len(c["token_ids"]) for c in whole["choices"])
    for choice in whole["choices"]:
        index = choice["index"]
        assert merged(chunks, index) == shape(choice)
        assert token_ids(chunks, index) == choice["token_ids"]
        if logprobs is not None:
            assert logprob_tokens(chunks, index) == choice["logprobs"]["content"]
            assert all(len(t["top_logprobs"]) == logprobs for t in choice["logprobs"]["content"])
        if single and tools == "auto":
            assert len(choice["message"].get("tool_calls", [])) <= 1
        if choice["finish_reason"] == "tool_calls":
            assert choice["message"]["tool_calls"]


def test_usage_appears_where_it_was_asked_for(chat: Chat) -> None:
    chat.engine.reset()
    for options in (None, {}, {"include_usage": False}):
        chunks = chat(stream=True, max_tokens=8, stream_options=options)
        assert all(chunk["choices"] and chunk.get("usage") is None for chunk in chunks)
    for n in (1, 2):
        chunks = chat(stream=True, max_tokens=8, n=n, stream_options={"include_usage": True})
        assert [i for i, chunk in enumerate(chunks) if not chunk["choices"]] == [len(chunks) - 1]
        usage = chunks[-1]["usage"]
        assert usage == chat(max_tokens=8, n=n)["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens"] == len(chat.engine.seen[-1][0])
    assert chat(expect=400, stream=False, stream_options={"include_usage": True})["error"]["param"]
