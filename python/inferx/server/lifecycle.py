"""What the server is doing as a whole: the requests it is answering, and whether it is shutting down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from inferx.server.errors import ApiError

# A supervisor's restart takes about that long; a load balancer has looked elsewhere by then.
DRAIN_RETRY_SECONDS = 10


class Lifecycle:
    """One per server, only touched from its event loop.

    active: requests being answered, other than those about the server itself.
    draining: no new requests are taken.
    """

    def __init__(self) -> None:
        self.active = 0
        self.draining = False
        self._changed = asyncio.Event()
        self._on_drain: list[Callable[[], Awaitable[None]]] = []

    def on_drain(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Have ``callback`` awaited when draining begins: work that no open request waits for should be put
        down where it can be taken up again."""
        self._on_drain.append(callback)

    def enter(self) -> None:
        self.active += 1

    def leave(self) -> None:
        self.active -= 1
        self._changed.set()

    def refusal(self) -> ApiError | None:
        """Why no new request is taken, if so."""
        if not self.draining:
            return None
        return ApiError(
            503,
            "the server is shutting down and takes no new requests",
            type="service_unavailable_error",
            code="draining",
            close=True,
            retry_after=DRAIN_RETRY_SECONDS,
        )

    async def drain(self, seconds: float) -> bool:
        """Take no more requests, and wait until those that run have ended, at most ``seconds``; whether
        all have."""
        self.draining = True
        callbacks = [asyncio.ensure_future(callback()) for callback in self._on_drain]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        if callbacks:
            await asyncio.wait(callbacks, timeout=seconds)
        while self.active:
            left = deadline - loop.time()
            if left <= 0:
                return False
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                return False
        return True
