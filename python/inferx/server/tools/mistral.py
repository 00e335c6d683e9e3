"""Mistral: ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]``; from the tokenizer's version 11 on
``[TOOL_CALLS]name[ARGS]{...}`` per call, with ``[CALL_ID]id`` before ``[ARGS]`` in version 11."""

from __future__ import annotations

import re

from inferx.server.tools.calls import CallListReader, Reader, State
from inferx.server.tools.events import CallArguments, CallEnd, CallStart, Event
from inferx.server.tools.json_stream import WHITESPACE, JsonValue
from inferx.server.tools.parser import MarkedParser

ARGS, CALL_ID = "[ARGS]", "[CALL_ID]"
# A name, and perhaps an id; ``[ARGS]`` is missing where it was not decoded.
_HEAD = re.compile(r"([A-Za-z0-9_.-]+)(?:\[CALL_ID\][A-Za-z0-9_-]*)?(?:\[ARGS\])?[ \t\n\r]*")
_MAX_HEAD = 512


class NamedArgumentsReader:
    """``name[ARGS]{...}``: the function's name, then its arguments as they are."""

    def __init__(self) -> None:
        self.state: State = "reading"
        self.pending = ""
        self._value: JsonValue | None = None

    def feed(self, text: str, events: list[Event]) -> str:
        if self._value is None:
            text = self._head(text, events)
        if self._value is None or not text or self.state != "reading":
            return text
        end = self._value.feed(text)
        if end:
            events.append(CallArguments(text[:end]))
        if self._value.failed:
            self.state = "failed"
        elif self._value.done:
            events.append(CallEnd())
            self.state = "done"
        return text[end:]

    def _head(self, text: str, events: list[Event]) -> str:
        """Character by character, so that what is given back does not depend on how the text was cut."""
        for position, character in enumerate(text):
            if character == "{" and (match := _HEAD.fullmatch(self.pending)):
                events.append(CallStart(match.group(1)))
                self.pending, self._value = "", JsonValue()
                return text[position:]
            if not _may_lead(self.pending + character):
                self.state = "failed"
                return text[position:]
            self.pending += character
        return ""


def _may_lead(text: str) -> bool:
    """Whether ``text`` can be the beginning of a head."""
    name = re.match(r"[A-Za-z0-9_.-]+", text)
    if name is None or len(text) > _MAX_HEAD:
        return False
    rest = text[name.end() :]
    if rest.startswith(CALL_ID):
        rest = rest[len(CALL_ID) :].lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
    elif CALL_ID.startswith(rest):
        return True
    if rest.startswith(ARGS):
        rest = rest[len(ARGS) :]
    elif ARGS.startswith(rest):
        return True
    return not rest.strip(WHITESPACE)


class CallsReader:
    """Either form: what comes first decides."""

    def __init__(self) -> None:
        self._chosen: Reader | None = None
        self._space = ""

    @property
    def state(self) -> State:
        return "reading" if self._chosen is None else self._chosen.state

    @property
    def pending(self) -> str:
        return self._space if self._chosen is None else self._space + self._chosen.pending

    def feed(self, text: str, events: list[Event]) -> str:
        if self._chosen is None:
            rest = text.lstrip(WHITESPACE)
            self._space += text[: len(text) - len(rest)]
            if not rest:
                return ""
            self._chosen = CallListReader() if rest[0] in "[{" else NamedArgumentsReader()
            text = rest
        text = self._chosen.feed(text, events)
        if events:
            self._space = ""  # it led to a call
        return text


class MistralParser(MarkedParser):
    starts = ("[TOOL_CALLS]",)
    other_marks = (ARGS, CALL_ID)

    def reader(self, mark: str) -> Reader:
        return CallsReader()
