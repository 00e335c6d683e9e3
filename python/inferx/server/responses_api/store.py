"""Responses that can be fetched, continued or cancelled later.  In memory: a restart forgets them.

Ids are random, 128 bits: whoever knows one may read, continue, cancel and delete that response.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from inferx.server import limits_table as limits
from inferx.server.errors import RETRY_SECONDS, ApiError, shorten
from inferx.server.responses_api.builder import Event, ResponseBuilder
from inferx.server.responses_api.items import Item
from inferx.server.streaming import KEEP_ALIVE, typed_event


class EventLog:
    """Events of a background response, written once, read by any number of clients from any place.

    Beyond ``max_bytes`` the first ones are dropped.  An event's place is its sequence_number.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0  # bytes
        self.first = 0  # sequence number of the oldest event that is still there
        self.closed = False
        self._events: deque[bytes] = deque()
        self._changed = asyncio.Event()

    @property
    def end(self) -> int:
        return self.first + len(self._events)

    def extend(self, events: list[Event]) -> None:
        for event in events:
            assert event["sequence_number"] == self.end
            data = typed_event(event)
            self._events.append(data)
            self.size += len(data)
        while self.size > self.max_bytes and len(self._events) > 1:
            self.size -= len(self._events.popleft())
            self.first += 1
        self._wake()

    def close(self) -> None:
        """Nothing will follow."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self, start: int, keep_alive: float) -> AsyncGenerator[bytes, None]:
        """Events from number ``start`` on, as bytes, until the last one; a comment whenever nothing came
        for ``keep_alive`` seconds."""
        while True:
            if start < self.first:
                yield typed_event(self._lost(start))
                return
            if start < self.end:
                # From the right, where a deque is quick to index and a reader usually is.
                chunk = b"".join([self._events[-i] for i in range(self.end - start, 0, -1)])
                start = self.end
                yield chunk
            elif self.closed:
                return
            else:
                try:
                    await asyncio.wait_for(self._changed.wait(), keep_alive)
                except asyncio.TimeoutError:
                    yield KEEP_ALIVE

    def _lost(self, start: int) -> Event:
        message = f"the events before {self.first} are no longer kept; fetch the response without stream"
        return {
            "type": "error",
            "sequence_number": start,
            "code": "events_not_kept",
            "message": message,
            "param": "starting_after",
        }


@dataclass
class Record:
    """One response with what it was made from.

    items: its whole input, earlier turns included, without the instructions.  log, task: of a background
    response.  size: bytes that it is counted with once it has finished.
    """

    builder: ResponseBuilder
    items: list[Item]
    log: EventLog | None = None
    task: asyncio.Task[None] | None = None
    size: int = 0
    kept_until: float = 0.0

    @property
    def id(self) -> str:
        return self.builder.id

    @property
    def background(self) -> bool:
        return self.log is not None

    def response(self) -> dict[str, Any]:
        return self.builder.response()

    def history(self) -> list[Item]:
        """What a following turn begins with.  A call that was cut off cannot be answered, so it is left
        out."""
        output = [
            item
            for item in self.builder.output
            if not (item["type"] == "function_call" and item["status"] != "completed")
        ]
        return [*self.items, *output]


class ResponseStore:
    """Bounded by number, bytes and age; the oldest finished one makes room.  Only for one event loop."""

    def __init__(
        self,
        *,
        max_responses: int = limits.STORED_RESPONSES.most,
        max_bytes: int = limits.STORED_RESPONSE_BYTES.most,
        seconds: float = limits.STORED_RESPONSE_SECONDS.most,
        max_running: int = limits.BACKGROUND_RESPONSES.most,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self.seconds = seconds
        self.max_running = max_running
        self.bytes = 0
        self.running_bytes = 0
        self._clock = clock
        self._finished: dict[str, Record] = {}  # oldest first
        self._running: dict[str, Record] = {}

    def __len__(self) -> int:
        return len(self._finished) + len(self._running)

    def add_running(self, record: Record) -> None:
        """Take in a background response before it starts; 429 when too many, or too large ones, run."""
        size = _size(record)
        full = self.running_bytes + size > self.max_bytes and bool(self._running)
        if full or len(self._running) >= self.max_running:
            raise ApiError(
                429,
                f"at most {self.max_running} background responses of {self.max_bytes} bytes together may be "
                f"unfinished, got one more than {len(self._running)} of {self.running_bytes} bytes",
                type="rate_limit_error",
                param="background",
                code="too_many_background_responses",
                retry_after=RETRY_SECONDS,
            )
        record.size = size
        self.running_bytes += size
        self._running[record.id] = record

    def add_finished(self, record: Record) -> None:
        """Keep a response that has ended, unless it was deleted while it ran or is too large."""
        was_running = self._stop_counting(record)
        if record.background and not was_running:
            return
        record.size = _size(record)
        if record.size > self.max_bytes:
            return
        record.kept_until = self._clock() + self.seconds
        self._finished[record.id] = record
        self.bytes += record.size
        self._evict()

    def find(self, response_id: str, param: str | None = None, status: int = 404) -> Record:
        """The response, or ApiError: never existed, was not kept, deleted, or forgotten."""
        self._evict()
        record = self._running.get(response_id) or self._finished.get(response_id)
        if record is None:
            code = "response_not_found" if param is None else "previous_response_not_found"
            message = f"there is no response with the id {shorten(response_id)}"
            raise ApiError(status, message, param=param, code=code)
        return record

    def remove(self, record: Record) -> None:
        self._stop_counting(record)
        if self._finished.pop(record.id, None) is not None:
            self.bytes -= record.size

    def _stop_counting(self, record: Record) -> bool:
        """Whether it was counted as running."""
        if self._running.pop(record.id, None) is None:
            return False
        self.running_bytes -= record.size
        return True

    def _evict(self) -> None:
        now = self._clock()
        while self._finished:
            oldest = next(iter(self._finished.values()))
            too_much = len(self._finished) > self.max_responses or self.bytes > self.max_bytes
            if not too_much and oldest.kept_until > now:
                return
            self.remove(oldest)


def _size(record: Record) -> int:
    size = len(msgspec.json.encode([record.items, record.response()]))
    return size if record.log is None else size + record.log.size
