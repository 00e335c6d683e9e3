"""Keeping control tokens out of what users write.

A chat template joins its own markers (``<|im_end|>``) with text from outside.  Encoded as one string,
marker text inside a message would become the real control token and forge a turn.  So, before rendering,
every marker inside a user-supplied string is replaced by one private-use character that occurs nowhere in
the inputs; after rendering those characters show where outside text lies, and the tokenizer encodes it as
ordinary sub-words.

A single character survives whatever a template does to strings (strip, split, upper, tojson).  A string
that ends like the beginning of a marker ("...<|im_") has that beginning's first character replaced too, so
that no marker can be put together from neighbouring strings.

What is a marker: every special token, and non-special added tokens that the template names or that are known
reasoning and tool marks.  In messages of role "assistant" the non-special ones stay: the model wrote them,
and templates look for them (to drop old reasoning, for instance).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from inferx.errors import InvalidRequestError

# Non-special added tokens that steer a parser even when the template does not name them.
KNOWN_MARKS = frozenset(
    f"<{slash}{name}>"
    for name in ("think", "tool_call", "tool_response", "tools", "tool_calls", "reasoning", "answer")
    for slash in ("", "/")
)
_PRIVATE_USE = re.compile("[\U000f0000-\U000ffffd\U00100000-\U0010fffd]")
_FIRST_PRIVATE, _LAST_PRIVATE = 0xF0000, 0xFFFFD


class Markers:
    """A set of marker texts with what is needed to find them (some vocabularies have thousands)."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = frozenset(text for text in texts if text)
        self._lengths = sorted({len(text) for text in self.texts}, reverse=True)
        firsts = "".join(sorted({text[0] for text in self.texts}))
        self._first = re.compile(f"[{re.escape(firsts)}]") if firsts else None
        # Every proper beginning of a marker.
        self._beginnings = {text[:end] for text in self.texts for end in range(1, len(text))}

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """(start, end) of each marker, from left to right, the longest at each place."""
        position = 0
        while self._first is not None and (match := self._first.search(text, position)):
            start = match.start()
            length = next((n for n in self._lengths if text[start : start + n] in self.texts), 0)
            if length:
                yield start, start + length
            position = start + max(length, 1)

    def replace(self, text: str, cover: Cover) -> str:
        """``text`` with each marker, and the beginning of one at the end, covered."""
        if self._first is None:
            return text
        pieces: list[str] = []
        done = 0
        for start, end in self.find(text):
            pieces += [text[done:start], cover.stand_in(text[start:end])]
            done = end
        return self._cover_end("".join([*pieces, text[done:]]), cover)

    def cut(self, text: str) -> list[str]:
        """``text`` in pieces, cut after the first character of each marker."""
        cuts = [0, *(start + 1 for start, _ in self.find(text)), len(text)]
        return [text[start:end] for start, end in pairwise(cuts) if start < end]

    def _cover_end(self, text: str, cover: Cover) -> str:
        end = len(text.rstrip())  # templates strip white space
        for start in range(max(0, end - (self._lengths[0] - 1)), end):
            if text[start:end] in self._beginnings:
                text = text[:start] + cover.stand_in(text[start]) + text[start + 1 :]
        return text


class Cover:
    """Stand-in characters for one request, and what they stand for."""

    def __init__(self, used: set[str]) -> None:
        self._used = used
        self._next = _FIRST_PRIVATE
        self._by_text: dict[str, str] = {}
        self.texts: dict[str, str] = {}

    def stand_in(self, text: str) -> str:
        """The character for ``text``; the same one each time."""
        known = self._by_text.get(text)
        if known is not None:
            return known
        while chr(self._next) in self._used:
            self._next += 1
        if self._next > _LAST_PRIVATE:
            raise InvalidRequestError("messages: too many private-use characters", "messages")
        character = chr(self._next)
        self._next += 1
        self._by_text[text] = character
        self.texts[character] = text
        return character

    def within(self, text: str) -> bool:
        return bool(self.texts) and any(character in text for character in self.texts)

    def restore(self, text: str) -> str:
        return text.translate({ord(character): original for character, original in self.texts.items()})


def private_characters(value: Any) -> set[str]:
    """Private-use characters in all strings of a JSON value: they cannot serve as stand-ins."""
    if isinstance(value, str):
        return set(_PRIVATE_USE.findall(value))
    if isinstance(value, dict):
        return set().union(
            *(private_characters(key) | private_characters(item) for key, item in value.items())
        )
    if isinstance(value, list):
        return set().union(*map(private_characters, value))
    return set()


def shield(value: Any, markers: Markers, cover: Cover) -> Any:
    """``value`` with the markers in all its strings, keys included, replaced."""
    if isinstance(value, str):
        return markers.replace(value, cover)
    if isinstance(value, dict):
        return {markers.replace(key, cover): shield(item, markers, cover) for key, item in value.items()}
    if isinstance(value, list):
        return [shield(item, markers, cover) for item in value]
    return value
