"""JSON read as it comes, a piece of text at a time: where a value ends, and where it stops being JSON."""

from __future__ import annotations

import re
from typing import Literal

# A value nested deeper than this is not taken for one (``json.loads`` of a client would fail on it, too).
MAX_DEPTH = 128
WHITESPACE = " \t\n\r"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPES = frozenset('"\\/bfnrtu')
_HEX = frozenset("0123456789abcdefABCDEF")
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_DIGITS = frozenset("0123456789")
# A number's states, what may follow in each, and whether it may end there.
_NUMBER: dict[str, tuple[dict[str, str], bool]] = {
    "minus": ({"0": "zero", **dict.fromkeys("123456789", "int")}, False),
    "zero": ({".": "dot", "e": "e", "E": "e"}, True),
    "int": ({**dict.fromkeys(_DIGITS, "int"), ".": "dot", "e": "e", "E": "e"}, True),
    "dot": (dict.fromkeys(_DIGITS, "fraction"), False),
    "fraction": ({**dict.fromkeys(_DIGITS, "fraction"), "e": "e", "E": "e"}, True),
    "e": ({**dict.fromkeys(_DIGITS, "exponent"), "+": "sign", "-": "sign"}, False),
    "sign": (dict.fromkeys(_DIGITS, "exponent"), False),
    "exponent": (dict.fromkeys(_DIGITS, "exponent"), True),
}
Expected = Literal["value", "value or ]", "key", "key or }", ":", ", or ]", ", or }"]


class JsonValue:
    """One JSON value, by RFC 8259.  The first character fed must be the value's own, not white space.

    done: the value is complete.  failed: the text cannot be one; what was consumed before is a beginning
    of one.  Both depend on the text alone, not on how it was cut.
    """

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self._expected: Expected = "value"
        self._open: list[str] = []  # closing brackets to come
        self._string: Literal["", "key", "value"] = ""
        self._escape = ""  # of a string: "", a backslash, or that and its beginning: \u12
        self._rest = ""  # of a literal
        self._number = ""  # state

    def feed(self, text: str, start: int = 0) -> int:
        """Consume what belongs to the value; the index behind it.  A number ends with what follows it."""
        position = start
        while position < len(text) and not self.done and not self.failed:
            if self._string:
                position = self._in_string(text, position)
            elif self._rest:
                position = self._in_literal(text, position)
            elif self._number:
                position = self._in_number(text, position)
            else:
                position = self._structure(text, position)
        return position

    def _in_string(self, text: str, position: int) -> int:
        if self._escape:
            return self._in_escape(text, position)
        match = _PLAIN.match(text, position)
        assert match is not None
        position = match.end()
        if position == len(text):
            return position
        character = text[position]
        if character == "\\":
            self._escape = "\\"
        elif character == '"':
            kind, self._string = self._string, ""
            if kind == "key":
                self._expected = ":"
            else:
                self._end_value()
        else:
            self.failed = True
            return position
        return position + 1

    def _in_escape(self, text: str, position: int) -> int:
        character = text[position]
        if character not in (_ESCAPES if len(self._escape) == 1 else _HEX):
            self.failed = True
            return position
        self._escape += character
        if self._escape[1] != "u" or len(self._escape) == 6:
            self._escape = ""
        return position + 1

    def _in_literal(self, text: str, position: int) -> int:
        if text[position] != self._rest[0]:
            self.failed = True
            return position
        self._rest = self._rest[1:]
        if not self._rest:
            self._end_value()
        return position + 1

    def _in_number(self, text: str, position: int) -> int:
        following, may_end = _NUMBER[self._number]
        state = following.get(text[position])
        if state is not None:
            self._number = state
            return position + 1
        if not may_end:
            self.failed = True
            return position
        self._number = ""
        self._end_value()
        return position

    def _end_value(self) -> None:
        if not self._open:
            self.done = True
        else:
            self._expected = ", or ]" if self._open[-1] == "]" else ", or }"

    def _structure(self, text: str, position: int) -> int:
        character = text[position]
        if character in WHITESPACE:
            self.failed = not self._open
            return position if self.failed else position + 1
        expected = self._expected
        if self._open and character == self._open[-1] and character in expected:
            self._open.pop()
            self._end_value()
        elif expected in ("value", "value or ]"):
            self._begin_value(character)
        elif character == '"' and expected in ("key", "key or }"):
            self._string = "key"
        elif character == expected == ":":
            self._expected = "value"
        elif character == "," and expected in (", or ]", ", or }"):
            self._expected = "value" if expected == ", or ]" else "key"
        else:
            self.failed = True
        return position if self.failed else position + 1

    def _begin_value(self, character: str) -> None:
        if character in "{[":
            if len(self._open) >= MAX_DEPTH:
                self.failed = True
                return
            self._open.append("}" if character == "{" else "]")
            self._expected = "key or }" if character == "{" else "value or ]"
        elif character == '"':
            self._string = "value"
        elif character in _LITERALS:
            self._rest = _LITERALS[character][1:]
        elif character == "-":
            self._number = "minus"
        elif character in _DIGITS:
            self._number = "zero" if character == "0" else "int"
        else:
            self.failed = True
