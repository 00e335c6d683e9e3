"""Whether the waiting queue takes more, asked before any work is put into a request."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from inferx.engine.scheduler import QueueFullError
from inferx.server.engine_api import AsyncEngine
from inferx.server.errors import bad_request
from inferx.server.generation import in_background

MAX_RETRY_SECONDS = 60
# Ends of requests that the rate is taken from.
NUM_ENDS = 32


class Admission:
    """Counts requests that are in the engine or on their way to it.

    The engine has the same bound on what has reached it; this one also counts what is being tokenised,
    and refuses before that is done.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.preparing = 0
        self._ends: deque[float] = deque(maxlen=NUM_ENDS)

    @contextmanager
    def preparing_requests(self, count: int = 1) -> Iterator[None]:
        """Hold ``count`` places while prompts are made ready; QueueFullError when there are too few.

        ApiError (400) when one request has more prompts than could ever wait.
        """
        capacity = self.engine.queue_capacity
        if in_background.get():
            yield  # background work sees to it itself that it does not pile up
            return
        if capacity is not None:
            if count > capacity:
                raise bad_request(
                    f"prompt takes at most {capacity} prompts here (--max-num-seqs and --max-waiting), "
                    f"got {count}",
                    "prompt",
                )
            if self.num_unfinished + count > capacity:
                raise QueueFullError(
                    f"the waiting queue is full: {self.num_unfinished} requests of {capacity}"
                )
        self.preparing += count
        try:
            yield
        finally:
            self.preparing -= count

    @property
    def num_unfinished(self) -> int:
        return self.engine.num_unfinished + self.preparing

    def ended(self) -> None:
        """A request has left the engine."""
        self._ends.append(time.monotonic())

    def retry_after(self) -> int:
        """Seconds in which a quarter of the queue should be worked off at the present rate, from 1 to 60.

        A quarter, since not all who are refused come back, and all at once would find it full again.
        """
        if len(self._ends) < 2:
            return 2
        seconds_each = (time.monotonic() - self._ends[0]) / len(self._ends)
        return max(1, min(MAX_RETRY_SECONDS, math.ceil(self.num_unfinished / 4 * seconds_each)))
