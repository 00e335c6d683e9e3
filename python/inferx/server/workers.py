"""Threads for work on callers' text, with a limit on how long one piece may take.

Python cannot end a thread.  Work that takes too long is given up instead: its request gets an error, an
exception is sent to its thread (which ends it at its next line of Python, if it comes to one), and
another thread takes the place.  Threads that go on all the same are counted; beyond a few of them the
pool takes no more work, rather than fill the machine.
"""

from __future__ import annotations

import asyncio
import ctypes
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from inferx.server.errors import ApiError

Result = TypeVar("Result")

# More threads than this that do not come back, and no work is taken.
MAX_STUCK = 4
# Work that has waited this many times its limit is not begun any more.
MAX_WAITS = 2


class _GivenUp(BaseException):
    """Sent to a thread whose work nobody waits for."""


class _Task:
    """One call, with the future of whoever waits for it.  Timers and the future belong to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> None:
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.function = function
        self.thread: threading.Thread | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.ended = False

    def settle(self, result: Any, error: BaseException | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.future.done():
            return
        if error is None:
            self.future.set_result(result)
        else:
            self.future.set_exception(error)


class WorkerPool:
    """``num_threads`` daemon threads; ``seconds`` that each piece of work gets, from its beginning."""

    def __init__(self, name: str, num_threads: int, seconds: float) -> None:
        self.name = name
        self.seconds = seconds
        self._num_threads = num_threads
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._given_up: list[threading.Thread] = []
        for _ in range(num_threads):
            self._start_thread()

    @property
    def num_stuck(self) -> int:
        """Threads that go on with work that was given up."""
        self._given_up = [thread for thread in self._given_up if thread.is_alive()]
        return len(self._given_up)

    def close(self) -> None:
        for _ in range(self._num_threads):
            self._queue.put(None)

    async def run(self, function: Callable[..., Result], *args: Any, param: str | None = None) -> Result:
        """``function(*args)`` in a thread.

        ApiError when it takes too long (400, naming ``param``), or when there is no thread for it (503).
        """
        self._check_room()
        loop = asyncio.get_running_loop()
        task = _Task(loop, lambda: function(*args))
        task.timer = loop.call_later(
            MAX_WAITS * self.seconds, task.settle, None, self._busy("too much text is waiting for its turn")
        )
        self._queue.put(task)
        try:
            result: Result = await task.future
            return result
        except _TooSlow:
            raise ApiError(
                400,
                f"processing the text took longer than {self.seconds:g} s and was given up",
                param=param,
                code="text_timeout",
            ) from None

    def _check_room(self) -> None:
        if self.num_stuck >= MAX_STUCK:
            raise self._busy(f"{self.num_stuck} threads are stuck in text that was given up")

    def _busy(self, why: str) -> ApiError:
        return ApiError(503, why, type="service_unavailable_error", code="text_workers_busy", retry_after=5)

    # ---- in the loop

    def _begun(self, task: _Task) -> None:
        if task.timer is not None:
            task.timer.cancel()
        if not task.ended:
            task.timer = task.loop.call_later(self.seconds, self._give_up, task)

    def _give_up(self, task: _Task) -> None:
        thread = task.thread
        if task.ended or thread is None:
            return
        self._given_up.append(thread)
        self._start_thread()
        task.settle(None, _TooSlow())
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_GivenUp)
        )

    # ---- in the threads

    def _start_thread(self) -> None:
        # Daemons: a thread that is stuck must not keep the process from ending.
        threading.Thread(target=self._work, name=self.name, daemon=True).start()

    def _work(self) -> None:
        try:
            while (task := self._queue.get()) is not None:
                self._do(task)
                if threading.current_thread() in self._given_up:
                    return
        except _GivenUp:
            return

    def _do(self, task: _Task) -> None:
        if task.future.done():  # whoever asked has left
            return
        result, error = None, None
        try:
            self._check_room()
            task.thread = threading.current_thread()
            task.loop.call_soon_threadsafe(self._begun, task)
            result = task.function()
        except _GivenUp:
            raise
        except BaseException as caught:
            error = caught
        task.ended = True
        try:
            task.loop.call_soon_threadsafe(task.settle, result, error)
        except RuntimeError:  # the loop is closed
            return


class _TooSlow(Exception):
    """What a future gets whose work was given up."""
