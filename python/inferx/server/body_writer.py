"""A short way for event streams: from the events to the socket, past the framework's layers.

A stream of tokens is many small pieces of a body.  Passing each through the framework and the HTTP state
machine costs several times as much as making it, and nothing on the way looks at it.  What begins and ends
the response still goes that way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

EXTENSION = "inferx.body_writer"


class BodyWriter:
    """Writes pieces of one response's body, in chunked transfer coding."""

    def __init__(self, protocol: H11Protocol) -> None:
        self._connection = protocol.conn
        self._cycle: RequestResponseCycle = protocol.cycle
        self._flow = protocol.flow
        self._write: Callable[[bytes], None] = protocol.transport.write

    @property
    def usable(self) -> bool:
        """Whether the response's head is out and said that chunks follow: not to HEAD, not in HTTP/1.0."""
        scope = self._cycle.scope
        return (
            self._connection.our_state is h11.SEND_BODY
            and scope["http_version"] == "1.1"
            and scope["method"] != "HEAD"
        )

    @property
    def paused(self) -> bool:
        """The client reads more slowly than is written: ``drain`` first."""
        return self._flow.write_paused

    async def drain(self) -> None:
        """Returns when the client has read enough, or has gone."""
        if not self._cycle.disconnected:
            await self._flow.drain()

    def write(self, data: bytes) -> None:
        """One chunk; nothing for empty data, which would end the body, or once the client has gone."""
        if data and not self._cycle.disconnected:
            self._write(b"%x\r\n%b\r\n" % (len(data), data))


def with_body_writer(protocol: H11Protocol, app: Any) -> ASGIApp:
    """``app``, which finds the BodyWriter of its response in the scope's extensions."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[EXTENSION] = BodyWriter(protocol)
        await app(scope, receive, send)

    return run


def body_writer_of(scope: Scope) -> BodyWriter | None:
    """The writer of a response that has begun; None where pieces must be sent the long way."""
    writer = cast("BodyWriter | None", scope.get("extensions", {}).get(EXTENSION))
    return writer if writer is not None and writer.usable else None
