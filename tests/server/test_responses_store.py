"""Kept responses: bounds, and the log of events that clients follow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from inferx.sampling_params import SamplingParams
from inferx.server.chat_core import ChatDelta, ToolCallDelta
from inferx.server.errors import ApiError
from inferx.server.protocol import parse_request
from inferx.server.responses_api.builder import ResponseBuilder
from inferx.server.responses_api.items import input_items
from inferx.server.responses_api.protocol import ResponsesRequest
from inferx.server.responses_api.store import EventLog, Record, ResponseStore

USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def record(text: str = "x", *, background: bool = False) -> Record:
    body = parse_request(ResponsesRequest, {"input": text, "background": background})
    builder = ResponseBuilder(body, "m", SamplingParams(), background=background)
    return Record(builder, input_items(text), EventLog(1000) if background else None)


def finished(text: str = "x") -> Record:
    made = record(text)
    made.builder.start()
    made.builder.advance(ChatDelta(0, content=text), [])
    made.builder.finish("stop", USAGE, None)
    return made


def missing(store: ResponseStore, made: Record) -> bool:
    try:
        store.find(made.id)
    except ApiError as error:
        return (error.status, error.code) == (404, "response_not_found")
    return False


def test_number() -> None:
    store = ResponseStore(max_responses=3)
    made = [finished() for _ in range(5)]
    for one in made:
        store.add_finished(one)
    assert [missing(store, one) for one in made] == [True, True, False, False, False]
    assert len(store) == 3


def test_bytes() -> None:
    store = ResponseStore(max_bytes=7000)
    first, second = finished("a" * 1000), finished("b" * 1000)
    store.add_finished(first)
    size = store.bytes
    assert 2000 < size < 3500  # the text is in the input and in the output
    store.add_finished(second)
    assert not missing(store, first)
    assert store.bytes == 2 * size
    third = finished("c" * 1000)
    store.add_finished(third)
    assert missing(store, first)
    assert not missing(store, third)
    store.add_finished(finished("d" * 10_000))  # larger than all that is kept: drops nothing
    assert not missing(store, second)
    assert store.bytes == 2 * size
    store.remove(second)
    store.remove(second)
    assert store.bytes == size


def test_age() -> None:
    now = 0.0
    store = ResponseStore(seconds=10, clock=lambda: now)
    first = finished()
    store.add_finished(first)
    now = 5
    second = finished()
    store.add_finished(second)
    now = 10
    assert missing(store, first)
    assert not missing(store, second)
    now = 15
    assert missing(store, second)
    assert store.bytes == 0


def test_background_responses_are_bounded_and_not_dropped() -> None:
    store = ResponseStore(max_responses=1, max_running=2)
    running = [record(background=True) for _ in range(2)]
    for one in running:
        store.add_running(one)
    with pytest.raises(ApiError) as caught:
        store.add_running(record(background=True))
    assert caught.value.status == 429
    store.add_finished(finished())
    assert not any(missing(store, one) for one in running)
    running[0].builder.cancel()
    store.add_finished(running[0])
    assert not missing(store, running[0])  # it is the youngest of those that have finished
    store.add_running(record(background=True))


def test_background_responses_are_bounded_in_bytes() -> None:
    store = ResponseStore(max_bytes=6000)
    large = [record("x" * 3500, background=True) for _ in range(3)]
    store.add_running(large[0])
    with pytest.raises(ApiError) as caught:
        store.add_running(large[1])
    assert caught.value.status == 429
    store.remove(large[0])
    store.add_running(large[2])
    for one in large:
        store.remove(one)
    assert store.running_bytes == 0
    store.add_running(record("x" * 9000, background=True))  # alone it may run, though it will not be kept


def test_what_was_deleted_does_not_come_back() -> None:
    store = ResponseStore()
    one = record(background=True)
    store.add_running(one)
    store.remove(one)
    one.builder.cancel()
    store.add_finished(one)
    assert missing(store, one)


def test_find_as_a_parameter() -> None:
    with pytest.raises(ApiError) as caught:
        ResponseStore().find("resp_" + "x" * 500, "previous_response_id", status=400)
    assert caught.value.status == 400
    assert caught.value.param == "previous_response_id"
    assert len(caught.value.message) < 200


def test_history_leaves_out_calls_that_were_cut_off() -> None:
    made = record("hi")
    made.builder.start()
    calls = [ToolCallDelta(0, "a", "f", "{}"), ToolCallDelta(1, "b", "f", '{"x')]
    made.builder.advance(ChatDelta(0, content="t", tool_calls=calls), [])
    made.builder.finish("length", USAGE, None)
    assert [item.get("call_id", item["type"]) for item in made.history()] == ["message", "message", "a"]


# ---- the log


def event(number: int, text: str = "") -> dict[str, Any]:
    return {"type": "t", "sequence_number": number, "text": text}


def numbers(data: bytes) -> list[int]:
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    found = []
    for block in blocks:
        if not block.startswith(":"):
            name, line = block.split("\n")
            assert line.startswith("data: ")
            assert name == "event: " + json.loads(line[6:])["type"]
            found.append(json.loads(line[6:])["sequence_number"])
    return found


async def read(log: EventLog, start: int, seen: Callable[[list[int]], None] = lambda _: None) -> list[int]:
    found: list[int] = []
    async for chunk in log.follow(start, 10):
        found += numbers(chunk)
        seen(found)
    return found


async def test_readers_at_any_place_see_every_event_once() -> None:
    log = EventLog(10_000)
    readers = [asyncio.create_task(read(log, start)) for start in (0, 3, 7, 50)]
    for number in range(20):
        log.extend([event(number)])
        if number % 3 == 0:
            await asyncio.sleep(0)
    log.close()
    results = await asyncio.wait_for(asyncio.gather(*readers), 5)
    assert results == [list(range(20)), list(range(3, 20)), list(range(7, 20)), []]
    assert await read(log, 18) == [18, 19]


async def test_only_the_last_events_are_kept() -> None:
    log = EventLog(1000)
    for number in range(100):
        log.extend([event(number, "x" * 50)])
    assert 800 < log.size <= 1000
    assert log.end == 100
    log.close()
    assert await read(log, log.first) == list(range(log.first, 100))
    chunks = [chunk async for chunk in log.follow(0, 10)]
    assert len(chunks) == 1
    lost = json.loads(chunks[0].decode().split("data: ")[1])
    assert lost["type"] == "error"
    assert lost["code"] == "events_not_kept"


async def test_one_event_larger_than_the_log_is_kept() -> None:
    log = EventLog(10)
    log.extend([event(0, "x" * 100)])
    log.close()
    assert await read(log, 0) == [0]


async def test_a_quiet_log_sends_comments() -> None:
    log = EventLog(1000)
    stream = log.follow(0, 0.01)
    assert (await anext(stream)).startswith(b":")
    log.extend([event(0)])
    assert numbers(await anext(stream)) == [0]
    log.close()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
