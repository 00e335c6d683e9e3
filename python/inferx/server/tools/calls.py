"""Reading calls written as JSON objects, ``{"name": ..., "arguments": {...}}``, one or a list of them.

A reader takes text until its calls are complete or the text cannot be one.  A call is announced when its
arguments begin (or with its end, when it has none); until then all of its text is kept, to be given back as
content should it turn out not to be a call.
"""

from __future__ import annotations

import json
from typing import Literal, Protocol

from inferx.server.tools.events import CallArguments, CallEnd, CallStart, Event
from inferx.server.tools.json_stream import WHITESPACE, JsonValue

NAME_KEYS = ("name",)
ARGUMENT_KEYS = ("arguments", "parameters")
# What objects that are calls have beside these; "function" may hold them.
OTHER_KEYS = ("type", "function", "id", "index")

State = Literal["reading", "done", "failed"]


class Reader(Protocol):
    """state: ``failed`` when the text is no call; then ``pending`` is what was consumed without an event."""

    @property
    def state(self) -> State: ...

    @property
    def pending(self) -> str: ...

    def feed(self, text: str, events: list[Event]) -> str:
        """Consume what belongs to the calls; what does not, is returned."""
        ...


class CallReader:
    """One call.  The text may begin with white space.

    names: functions that can be called, others are no calls; None for any.  strict_keys: an object with
    keys that no call has is not one, which tells a call from JSON that is meant as an answer.
    """

    def __init__(self, names: frozenset[str] | None = None, *, strict_keys: bool = False) -> None:
        self.state: State = "reading"
        self.pending = ""
        self._names = names
        self._strict_keys = strict_keys
        self._expected: Literal["{", "key or }", "key", ":", "value", ", or }"] = "{"
        self._depth = 0  # 2 inside of "function"
        self._value: JsonValue | None = None  # being read, a key or a value
        self._text = ""  # of that
        self._key = ""
        self._name: str | None = None
        self._held: str | None = None  # arguments that came before the name
        self._started = False
        self._ended = False

    def feed(self, text: str, events: list[Event]) -> str:
        position = 0
        while position < len(text) and self.state == "reading":
            if self._value is not None:
                position = self._in_value(text, position, events)
                continue
            character = text[position]
            if character not in WHITESPACE and not self._structure(character, events):
                self.state = "failed"
                break
            if self._value is None:
                position += 1
                if self.state == "reading":
                    self.pending += character
        return text[position:]

    # ---- structure

    def _structure(self, character: str, events: list[Event]) -> bool:
        """Take one character between keys and values; whether it may stand there."""
        expected = self._expected
        if character == "{" and expected == "{":
            self._depth, self._expected = 1, "key or }"
        elif character == '"' and expected in ("key", "key or }"):
            self._value, self._text, self._key = JsonValue(), "", ""
        elif character == expected == ":":
            self._expected = "value"
        elif expected == "value":
            return self._begin_value(character)
        elif character == "," and expected == ", or }":
            self._expected = "key"
        elif character == "}" and expected in (", or }", "key or }"):
            self._depth, self._expected = self._depth - 1, ", or }"
            return self._depth > 0 or self._end(events)
        else:
            return False
        return True

    def _begin_value(self, character: str) -> bool:
        if self._key == "function" and character == "{" and self._depth == 1:
            self._depth, self._expected = 2, "key or }"
            return True
        if self._key in NAME_KEYS and character != '"':
            return False
        if self._key in ARGUMENT_KEYS and character not in '{"n':
            return False
        self._value, self._text = JsonValue(), ""
        return True

    def _end(self, events: list[Event]) -> bool:
        if self._name is None:
            return False
        if not self._started:
            self._start(self._held or "{}", events)
        if not self._ended:
            events.append(CallEnd())
        self.state = "done"
        self.pending = ""
        return True

    # ---- keys and values

    @property
    def _in_arguments(self) -> bool:
        """Whether the value being read is passed on as it comes."""
        return self._key in ARGUMENT_KEYS and self._started and not self._ended

    def _in_value(self, text: str, position: int, events: list[Event]) -> int:
        value = self._value
        assert value is not None
        end = value.feed(text, position)
        piece = text[position:end]
        if self._expected == "value" and self._key in ARGUMENT_KEYS and not self._started and not self._text:
            self._maybe_start(piece, events)
        self._text += piece
        if not self._in_arguments:
            self.pending += piece
        elif piece:
            events.append(CallArguments(piece))
        if value.failed:
            self.state = "failed"
        elif value.done:
            self._value = None
            if not self._finish_value(events):
                self.state = "failed"
        return end

    def _maybe_start(self, piece: str, events: list[Event]) -> None:
        """Announce the call when an object of arguments begins and the name is known."""
        if self._name is not None and self._held is None and piece.startswith("{"):
            self._start("", events)

    def _start(self, arguments: str, events: list[Event]) -> None:
        assert self._name is not None
        self._started, self.pending = True, ""
        events.append(CallStart(self._name))
        if arguments:
            events.append(CallArguments(arguments))

    def _finish_value(self, events: list[Event]) -> bool:
        if self._expected != "value":
            self._expected = ":"
            self._key = _decoded(self._text)
            known = self._key in (*NAME_KEYS, *ARGUMENT_KEYS, *OTHER_KEYS)
            return known or not self._strict_keys
        self._expected = ", or }"
        if self._key in NAME_KEYS and self._name is None:
            return self._take_name()
        if self._key in ARGUMENT_KEYS:
            if self._in_arguments:
                self._ended = True
                events.append(CallEnd())
            elif not self._started and self._held is None:
                self._held = arguments_object(self._text)
                return self._held is not None
        return True

    def _take_name(self) -> bool:
        name = _decoded(self._text)
        if not name or not _encodable(name) or (self._names is not None and name not in self._names):
            return False
        self._name = name
        return True


class CallListReader:
    """``[call, call, ...]``, or a single call.  The text may begin with white space."""

    def __init__(self, names: frozenset[str] | None = None) -> None:
        self.state: State = "reading"
        self._pending = ""
        self._names = names
        self._expected: Literal["[", "call or ]", "call", ", or ]"] = "["
        self._single = False
        self._call: CallReader | None = None

    @property
    def pending(self) -> str:
        return self._pending + (self._call.pending if self._call is not None else "")

    def feed(self, text: str, events: list[Event]) -> str:
        while text and self.state == "reading":
            if self._call is not None:
                text = self._in_call(self._call, text, events)
            elif text[0] in WHITESPACE:
                self._pending += text[0]
                text = text[1:]
            elif text[0] == "{" and self._expected in ("[", "call or ]", "call"):
                self._single = self._expected == "["
                self._call = CallReader(self._names)
            elif not self._structure(text[0]):
                self.state = "failed"
            else:
                if self.state == "reading" or self._pending:  # what closes a list of calls is done with
                    self._pending += text[0]
                text = text[1:]
        return text

    def _structure(self, character: str) -> bool:
        if character == "[" and self._expected == "[":
            self._expected = "call or ]"
        elif character == "," and self._expected == ", or ]":
            self._expected = "call"
        elif character == "]" and self._expected in (", or ]", "call or ]"):
            if self._expected == ", or ]":
                self._pending = ""
            self.state = "done"
        else:
            return False
        return True

    def _in_call(self, call: CallReader, text: str, events: list[Event]) -> str:
        count = len(events)
        text = call.feed(text, events)
        if len(events) > count:
            self._pending = ""  # what led to this call
        if call.state == "failed":
            self.state = "failed"
        elif call.state == "done":
            self._call = None
            self._expected = ", or ]"
            if self._single:
                self.state = "done"
        return text


def arguments_object(text: str) -> str | None:
    """Arguments as the JSON text of an object: written as one, as a string that holds one, or null."""
    if text == "null":
        return "{}"
    if text.startswith('"'):
        text = _decoded(text).strip(WHITESPACE) or "{}"
        value = JsonValue()
        if not text.startswith("{") or value.feed(text) != len(text) or not value.done:
            return None
        return text if _encodable(text) else None
    return text


def _decoded(text: str) -> str:
    """The content of a JSON string, whose syntax has been checked."""
    return str(json.loads(text))


def _encodable(text: str) -> bool:
    """Not so with half a surrogate pair, which JSON's escapes can write."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
