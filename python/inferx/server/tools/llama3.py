"""Llama 3: ``{"name": ..., "parameters": {...}}`` as the whole answer, or behind ``<|python_tag|>``; several
calls are separated by semicolons."""

from __future__ import annotations

from inferx.server.tools.calls import CallReader, Reader
from inferx.server.tools.json_stream import WHITESPACE
from inferx.server.tools.parser import MarkedParser


class Llama3Parser(MarkedParser):
    """names: the request's functions.  Without a mark only objects that look like a call of one of them are
    calls: JSON can be an answer, too."""

    starts = ("<|python_tag|>",)

    def __init__(self, names: frozenset[str], hidden: frozenset[str] = frozenset()) -> None:
        super().__init__(hidden)
        self._names = names

    def reader(self, mark: str) -> Reader:
        return CallReader()

    def bare_reader(self, text: str) -> Reader | None:
        return CallReader(self._names, strict_keys=True) if text.startswith("{") else None

    def behind_calls(self, text: str, *, final: bool) -> tuple[str, Reader | None] | None:
        rest = text.lstrip(WHITESPACE)
        if rest.startswith(";"):
            return rest[1:], CallReader(self._names, strict_keys=True)
        if not rest and not final:
            return None
        return text, None
