"""What waits between the engine's receiver and the task that answers one request."""

from __future__ import annotations

import asyncio
from collections import deque

from inferx.outputs import RequestOutput

# From here on new outputs are joined with the last one.  A reader that keeps up finds each by itself; one
# that does not gets larger pieces, which cost less each, and what waits for it is little more than its text.
JOIN_FROM = 2


class Mailbox:
    """A queue for one reader on one event loop, with less to do per item than asyncio's."""

    def __init__(self) -> None:
        self._items: deque[RequestOutput | Exception] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put_nowait(self, item: RequestOutput | Exception) -> None:
        """Add an item; it is the mailbox's from now on, and may be joined with others."""
        items = self._items
        if len(items) < JOIN_FROM or not _join(items[-1], item):
            items.append(item)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def get(self) -> RequestOutput | Exception:
        """The oldest item; waits for one."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._items.popleft()


def _join(last: RequestOutput | Exception, item: RequestOutput | Exception) -> bool:
    """Append a delta to the one before it; False where both must stay: only deltas of one sample each,
    and the same, can become one."""
    if not (isinstance(last, RequestOutput) and isinstance(item, RequestOutput)):
        return False
    if len(last.outputs) != 1 or len(item.outputs) != 1 or last.outputs[0].index != item.outputs[0].index:
        return False
    if last.outputs[0].finish_reason is not None or item.prompt_logprobs is not None:
        return False
    last.outputs[0].add(item.outputs[0])
    last.finished = item.finished
    last.metrics = item.metrics
    last.embedding = item.embedding
    last.num_cached_tokens = max(last.num_cached_tokens, item.num_cached_tokens)
    return True
