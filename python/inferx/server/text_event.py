"""Events that differ in one text only."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from inferx.server.streaming import event

_encode = msgspec.json.Encoder().encode


class TextEvent:
    """One kind of event of one response: all of it but the text is encoded once.

    Nearly every event of a stream is of this kind, and encoding the whole of it takes most of its time.
    """

    def __init__(self, make: Callable[[str], dict[str, Any]]) -> None:
        """``make(text)``: the event's data with that text in one place."""
        mark = secrets.token_hex(16)  # in no other place, whatever names and ids the client has chosen
        self._before, found, self._after = event(make(mark)).partition(b'"%s"' % mark.encode())
        assert found

    def __call__(self, text: str) -> bytes:
        """The bytes of ``event(make(text))``."""
        return self._before + _encode(text) + self._after
