"""Calls that the request demands: structured output makes the model write them in one form, whatever its
own is (see ``choice``)."""

from __future__ import annotations

from inferx.server.tools.calls import CallListReader, Reader
from inferx.server.tools.events import CallArguments, CallEnd, CallStart, Event
from inferx.server.tools.json_stream import WHITESPACE, JsonValue
from inferx.server.tools.parser import ContentWriter, MarkedParser


class NamedParser:
    """The whole answer is the arguments of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._value: JsonValue | None = None
        self._events: list[Event] = []
        self._behind = ContentWriter(self._events, frozenset())

    def push(self, text: str) -> list[Event]:
        if self._value is None:
            text = text.lstrip(WHITESPACE)
            if not text:
                return []
            self._value = JsonValue()
            self._behind.call()
            self._events.append(CallStart(self._name))
        if not self._value.done:
            text = self._arguments(self._value, text)
        self._behind.write(text)
        return self._take()

    def _arguments(self, value: JsonValue, text: str) -> str:
        end = value.feed(text)
        if value.failed:
            end = len(text)  # it cannot be, under the grammar; whatever it is, the caller gets it
        if end:
            self._events.append(CallArguments(text[:end]))
        if value.done:
            self._events.append(CallEnd())
        return text[end:]

    def finish(self) -> list[Event]:
        self._behind.end()
        return self._take()

    def _take(self) -> list[Event]:
        events = self._events[:]
        self._events.clear()
        return events


class RequiredParser(MarkedParser):
    """The whole answer is a list of calls.  One that was cut in the midst of a call's name is left out."""

    def finish(self) -> list[Event]:
        if self._reader is not None:
            self._reader = None
        return super().finish()

    def reader(self, mark: str) -> Reader:
        return CallListReader()  # there are no marks

    def bare_reader(self, text: str) -> Reader | None:
        return CallListReader() if text.startswith("[") else None
