"""Server-sent events, and noticing that a client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from inferx.server.body_writer import body_writer_of
from inferx.server.errors import as_api_error
from inferx.server.generation import OutputStream

DONE = b"data: [DONE]\n\n"
# A line that clients ignore; it keeps proxies from closing a quiet connection.
KEEP_ALIVE = b": waiting\n\n"

# An event's data, or the event as it is to be sent.
EventData = dict[str, Any] | bytes
EventSource = Callable[[], AsyncGenerator[EventData, None]]


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def typed_event(data: dict[str, Any]) -> bytes:
    """An event whose type is also its name, as the APIs that have several types send it."""
    return b"event: " + data["type"].encode() + b"\n" + event(data)


def error_event(error: Exception) -> bytes:
    """The status is out already: the error travels as an event, as OpenAI clients expect it."""
    return event(as_api_error(error).body())


@dataclass(frozen=True)
class Framing:
    """How one API writes its events.

    event: one of the source's.  error: what ends the stream when the source fails.  keep_alive: sent
    when nothing has come for a while.  end: the last bytes of every stream.
    """

    event: Callable[[dict[str, Any]], bytes] = event
    error: Callable[[Exception], bytes] = error_event
    keep_alive: bytes = KEEP_ALIVE
    end: bytes = DONE


OPENAI_FRAMING = Framing()


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has closed the connection.  The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_disconnect(receive: Receive, work: Awaitable[Any]) -> Any:
    """The result of ``work``; when the client leaves first, cancel it and raise ClientDisconnect."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect()
    finally:
        for pending in (task, watcher):
            pending.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


class Closeable(Protocol):
    """What a stream ends when its client has gone: the work behind it."""

    async def aclose(self) -> None: ...


class EventStream(StreamingResponse):
    """Sends pieces until their source ends or the client leaves, which also ends the source.

    keep_alive: (seconds, piece): what is sent when nothing has come for that long (a preempted request, say).

    The framework's own streaming notices a lost client only when it writes; a queued request writes
    nothing for a while.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        outputs: Closeable,
        keep_alive: tuple[float, bytes] | None = None,
    ) -> None:
        super().__init__(
            chunks,
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )
        self._chunks = chunks
        self._outputs = outputs
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._run(scope, send))
        except (ClientDisconnect, OSError):
            pass
        finally:
            await self._chunks.aclose()
            # A client that left before the first chunk was asked for leaves a generator that never ran,
            # and whose own cleanup therefore does not run either.
            await self._outputs.aclose()

    async def _run(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = _Body(scope, send)
        keeper = None
        if self._keep_alive is not None:
            keeper = asyncio.ensure_future(body.keep_alive(*self._keep_alive))
        try:
            async for chunk in self._chunks:
                # Most of a stream's time is spent here, so there is no call more than needed.
                if body.writer is None or body.writer.paused:
                    await body.send(chunk)
                else:
                    body.writer.write(chunk)
                body.quiet_since = body.time()
        finally:
            if keeper is not None:
                keeper.cancel()
                await asyncio.gather(keeper, return_exceptions=True)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Body:
    """The body of a response whose head is out."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.writer = body_writer_of(scope)
        self.time = asyncio.get_running_loop().time
        self.quiet_since = self.time()
        self._send = send

    async def send(self, data: bytes) -> None:
        if self.writer is None:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            return
        if self.writer.paused:
            await self.writer.drain()
        self.writer.write(data)

    async def keep_alive(self, seconds: float, data: bytes) -> None:
        """Send ``data`` whenever nothing else has been sent for so long."""
        while True:
            left = self.quiet_since + seconds - self.time()
            if left > 0:
                await asyncio.sleep(left)
                continue
            await self.send(data)
            self.quiet_since = self.time()


async def respond_with_events(
    request: Request,
    outputs: OutputStream,
    source: EventSource,
    grace: float,
    keep_alive: float,
    framing: Framing = OPENAI_FRAMING,
) -> Response:
    """An event stream, or the error that came before the first output (up to ``grace`` seconds)."""
    try:
        started = await until_disconnect(request.receive, outputs.wait_first(grace))
    except BaseException:
        await outputs.aclose()
        raise
    chunks = _chunks(outputs, source, started, framing)
    return EventStream(chunks, outputs, (keep_alive, framing.keep_alive))


async def _chunks(
    outputs: OutputStream, source: EventSource, started: bool, framing: Framing
) -> AsyncGenerator[bytes, None]:
    events = source()
    try:
        if not started:
            yield framing.keep_alive
            await outputs.wait_first(None)
        async for data in events:
            yield data if isinstance(data, bytes) else framing.event(data)
    except Exception as error:
        yield framing.error(error)
    finally:
        await events.aclose()
        await outputs.aclose()
    if framing.end:
        yield framing.end
