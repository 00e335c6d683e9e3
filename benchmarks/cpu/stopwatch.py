"""Where time goes among functions that call each other: each moment counts for the innermost of them."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Stopwatch:
    """Functions are wrapped from outside and belong to a part each; what no part claims goes to ``rest``.

    Inside ``measuring()`` the parts' times sum to the time measured, exactly.
    """

    def __init__(self, rest: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._rest = rest
        self._stack: list[str] = []
        self._last = 0.0
        self._times: dict[str, float] = defaultdict(float)
        self._undo: list[Callable[[], None]] = []
        self.calls = 0

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Count the time in ``owner.name`` (a method of an object or a class, a function of a module) for
        ``part``, less that of wrapped functions that it calls.  AttributeError when there is none."""
        original = getattr(owner, name)
        own = vars(owner).get(name, _NONE) if hasattr(owner, "__dict__") else _NONE

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if not self._stack:
                return original(*args, **kwargs)
            self._enter(part)
            try:
                return original(*args, **kwargs)
            finally:
                self._leave()

        setattr(owner, name, timed)
        self._undo.append(lambda: delattr(owner, name) if own is _NONE else setattr(owner, name, own))

    def unwrap(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def measuring(self) -> Iterator[dict[str, float]]:
        """Yields a dictionary that holds the seconds by part at the end of the block."""
        result: dict[str, float] = {}
        self._times.clear()
        self._last = self._clock()
        self._stack.append(self._rest)
        try:
            yield result
        finally:
            self._leave()
            result.update(self._times)

    def _enter(self, part: str) -> None:
        now = self._clock()
        self._times[self._stack[-1]] += now - self._last
        self._stack.append(part)
        self._last = now
        self.calls += 1

    def _leave(self) -> None:
        now = self._clock()
        self._times[self._stack.pop()] += now - self._last
        self._last = now


_NONE = object()
