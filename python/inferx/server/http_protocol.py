"""One HTTP connection: uvicorn's protocol with bounds on how slow, idle or silent a client may be.

What a client can hold without asking for work: a connection (their number is bounded), headers or a body that
do not come to an end (deadlines; a body's moves with what has come), a stream that it does not read (it is
cut off when nothing fits into its buffers for too long), and an idle connection (closed after a while,
or when another one needs its place).
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any, cast

import h11
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from inferx.server.body_writer import with_body_writer
from inferx.server.errors import ApiError

# Connections beyond the limit that are kept open until they can be told why they are not wanted.
REFUSED_CONNECTIONS = 64
# What a client still sends after its answer is read and dropped, so that it gets to see the answer: closing
# at once would reset the connection under it.
LINGER_SECONDS = 2.0
LINGER_BYTES = 16 << 20
# A body gets a second more for each of these, so that one that comes in steadily is never too slow.
BYTES_PER_SECOND = 16 << 10


@dataclass(frozen=True)
class ConnectionLimits:
    """max_connections: open at once.  Seconds: header_timeout from the connection, or a request's first
    byte, to the end of its headers; body_timeout for the body beside what BYTES_PER_SECOND gives it;
    write_timeout for a client to read what is ready."""

    max_connections: int
    header_timeout: float
    body_timeout: float
    write_timeout: float


class BoundedConfig(Config):
    """uvicorn's configuration, which is what its protocols are made with."""

    def __init__(self, app: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(app, http=BoundedProtocol, **options)
        self.app: Any = app
        self.limits = limits


class BoundedProtocol(H11Protocol):
    """See the module's docstring.  At any time one deadline runs: for headers, for a body, or none."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.limits = cast(BoundedConfig, self.config).limits
        self.app = with_body_writer(self, self.app)
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._body_started = 0.0
        self._body_bytes = 0
        self._unwanted = False

    # ---- events of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, LingeringTransport(self, transport))
        excess = len(self.connections) - self.limits.max_connections
        if excess > 0 and not self._close_an_idle_one():
            self._unwanted = True
            if excess > REFUSED_CONNECTIONS:
                self.transport.abort()
                return
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._cancel_write_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            cast(LingeringTransport, self.transport).dropped(len(data))
            return
        if self._unwanted:
            self._refuse_connection()
            return
        if self.conn.their_state is h11.SEND_BODY:
            self._body_bytes += len(data)
        elif self.conn.their_state is h11.IDLE and self._deadline is None:
            self._expect_headers()
        super().data_received(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel_write_deadline()
        self._write_deadline = self.loop.call_later(self.limits.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_write_deadline()
        super().resume_writing()

    # ---- requests

    def handle_events(self) -> None:
        super().handle_events()
        self._follow_state()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow_state()

    def _follow_state(self) -> None:
        """Let the deadline be that of what the client is doing."""
        state = self.conn.their_state
        if state is h11.IDLE:
            # Between requests keep-alive has a timer of its own; it ends with any byte.
            if self.timeout_keep_alive_task is not None and not self.conn.trailing_data[0]:
                self._cancel_deadline()
            elif self._deadline is None:
                self._expect_headers()
        elif state is h11.SEND_BODY:
            if self._body_started == 0.0:
                self._expect_body()
        else:
            self._body_started = 0.0
            self._cancel_deadline()

    def _expect_headers(self) -> None:
        self._body_started = 0.0
        self._cancel_deadline()
        self._deadline = self.loop.call_later(self.limits.header_timeout, self._too_slow, "headers")

    def _expect_body(self) -> None:
        self._cancel_deadline()
        self._body_started = self.loop.time()
        self._body_bytes = 0
        self._deadline = self.loop.call_later(self.limits.body_timeout, self._check_body)

    def _check_body(self) -> None:
        until = self._body_started + self.limits.body_timeout + self._body_bytes / BYTES_PER_SECOND
        if self.loop.time() < until:
            self._deadline = self.loop.call_at(until, self._check_body)
        elif self.flow.read_paused:
            # It is we who do not read, so it is not the client that is slow.
            self._deadline = self.loop.call_later(1.0, self._check_body)
        else:
            self._too_slow("body")

    def _too_slow(self, part: str) -> None:
        self._deadline = None
        if part == "headers" and self.conn.trailing_data == (b"", False):
            self.transport.close()  # nothing was asked, so there is nothing to answer
            return
        self._refuse(ApiError(408, f"the request's {part} took too long to come in", code="request_timeout"))

    # ---- ends

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error outside of any endpoint and close; nothing, if an answer has begun."""
        cycle = self.cycle
        begun = False
        if cycle is not None and self.conn.our_state is not h11.IDLE:  # it is this request's
            begun = cycle.response_started
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()
        if not begun:
            self.transport.write(_response(error))
        self._cancel_deadline()
        self.transport.close()

    def _refuse_connection(self) -> None:
        error = ApiError(
            503,
            f"all {self.limits.max_connections} connections are in use",
            type="service_unavailable_error",
            code="too_many_connections",
            retry_after=1,
        )
        self._refuse(error)

    def send_400_response(self, msg: str) -> None:
        """Called while the parser's error is being handled: it knows the status."""
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        if status == 431:
            error = ApiError(431, "the request's headers are too large", code="headers_too_large")
        else:
            error = ApiError(status, "the request is not valid HTTP", code="invalid_http")
        self._refuse(error)

    def _should_upgrade(self) -> bool:
        return False  # there is no other protocol here, and asking for one is not worth a line in the log

    def _close_an_idle_one(self) -> bool:
        for other in self.connections:
            if isinstance(other, BoundedProtocol) and other.idle:
                other.timeout_keep_alive_handler()
                return True
        return False

    @property
    def idle(self) -> bool:
        """Between two requests, so that it may be closed at any time."""
        return (
            self.timeout_keep_alive_task is not None
            and self.conn.our_state is h11.IDLE
            and not self.conn.trailing_data[0]
            and not self.transport.is_closing()
        )

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cancel_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


class LingeringTransport:
    """A transport whose ``close`` lets the client finish what it is sending, within bounds, when that is
    of no more interest."""

    def __init__(self, protocol: BoundedProtocol, transport: asyncio.Transport) -> None:
        self._protocol = protocol
        self._transport = transport
        self._lingering = False
        self._dropped = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._lingering or self._transport.is_closing()

    def close(self) -> None:
        if self._lingering or self._transport.is_closing():
            return
        unread = self._protocol.conn.their_state in (h11.SEND_BODY, h11.ERROR)
        if not unread or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._lingering = True
        self._transport.write_eof()
        self._protocol.flow.resume_reading()
        self._protocol.loop.call_later(LINGER_SECONDS, self._transport.close)

    def dropped(self, count: int) -> None:
        """So many bytes have come in that nobody reads."""
        self._dropped += count
        if self._dropped > LINGER_BYTES:
            self._transport.abort()


def _response(error: ApiError) -> bytes:
    body = msgspec.json.encode(error.body())
    lines = [
        b"HTTP/1.1 %d %s" % (error.status, STATUS_PHRASES.get(error.status, b"")),
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"connection: close",
    ]
    if error.retry_after is not None:
        lines.append(b"retry-after: %d" % error.retry_after)
    return b"\r\n".join((*lines, b"", body))
