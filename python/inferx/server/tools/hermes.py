"""Hermes, Qwen and others: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, once per call."""

from __future__ import annotations

from inferx.server.tools.calls import CallListReader, Reader
from inferx.server.tools.json_stream import WHITESPACE
from inferx.server.tools.parser import MarkedParser


class HermesParser(MarkedParser):
    """A tag may hold a list of calls, or several calls in a row; a missing end tag is forgiven."""

    END = "</tool_call>"
    starts = ("<tool_call>",)
    other_marks = (END,)

    def reader(self, mark: str) -> Reader:
        return CallListReader()

    def behind_calls(self, text: str, *, final: bool) -> tuple[str, Reader | None] | None:
        rest = text.lstrip(WHITESPACE)
        if rest.startswith(self.END):
            return rest[len(self.END) :], None
        if rest.startswith("{"):
            return rest, CallListReader()
        if not final and self.END.startswith(rest):
            return None
        return text, None
