"""What the parsers of all formats share: text up to a mark, then calls, then text again.

A parser takes the text of one answer in pieces and says what is content and what are calls.  It is pure: the
same text gives the same events however it is cut (``events.merged``), and nothing raises.  What begins like
a call and is none comes out as content; white space next to a call is part of the call's markup.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from typing import Protocol

from inferx.server.tools.calls import Reader
from inferx.server.tools.events import CallStart, Content, Event
from inferx.server.tools.json_stream import WHITESPACE


class ToolParser(Protocol):
    """One answer's text in, events out."""

    def push(self, text: str) -> list[Event]:
        """What is certain with this piece."""
        ...

    def finish(self) -> list[Event]:
        """The rest: no more text comes."""
        ...


class Marks:
    """Finds the first of some marks in text that is not complete yet."""

    def __init__(self, marks: Iterable[str]) -> None:
        self.marks = tuple(dict.fromkeys(marks))
        self._any = re.compile("|".join(map(re.escape, self.marks))) if self.marks else None
        self._beginnings = {mark[:end] for mark in self.marks for end in range(1, len(mark))}
        self._longest = max(map(len, self.marks), default=1) - 1
        self._firsts = {mark[0] for mark in self.marks}

    def split(self, text: str, *, final: bool) -> tuple[str, str | None, str]:
        """(text before, the mark, text behind); without a mark: (certain text, None, what may become one)."""
        if self._any is not None and (match := self._any.search(text)):
            return text[: match.start()], match.group(), text[match.end() :]
        return (text, None, "") if final else self.split_end(text)

    def split_end(self, text: str) -> tuple[str, None, str]:
        """(text before, None, its end that may become a mark)."""
        least = max(0, len(text) - self._longest)
        if any(text.find(first, least) >= 0 for first in self._firsts):
            for start in range(least, len(text)):
                if text[start:] in self._beginnings:
                    return text[:start], None, text[start:]
        return text, None, ""


class ContentWriter:
    """Content events, without the white space that adjoins calls and without hidden marks.

    hidden: marks that are special tokens of the vocabulary, which never show in an answer.
    """

    def __init__(self, events: list[Event], hidden: frozenset[str]) -> None:
        self._events = events
        self._hidden = hidden
        self._space = ""  # held until it is known what follows
        self._behind_call = False
        self.empty = True  # no content yet

    @property
    def at_beginning(self) -> bool:
        """Neither content nor a call has come."""
        return self.empty and not self._behind_call

    def write(self, text: str) -> None:
        for mark in self._hidden:
            text = text.replace(mark, "")
        text = self._space + text
        visible = text.rstrip(WHITESPACE)
        self._space = text[len(visible) :]
        if not visible:
            return
        if self._behind_call and self.empty:
            visible = visible.lstrip(WHITESPACE)
        self._behind_call = self.empty = False
        self._events.append(Content(visible))

    def call(self) -> None:
        """A call begins here."""
        self._space = ""
        self._behind_call = True

    def end(self) -> None:
        if self._space and not self._behind_call:
            self._events.append(Content(self._space))
        self._space = ""


class MarkedParser:
    """A format whose calls follow a mark.  Subclasses say what to read behind one, and behind a call."""

    starts: tuple[str, ...] = ()
    other_marks: tuple[str, ...] = ()

    def __init__(self, hidden: frozenset[str] = frozenset()) -> None:
        self._marks = Marks([*self.starts, *(m for m in self.other_marks if m in hidden)])
        self._buffer = ""
        self._events: list[Event] = []
        self.content = ContentWriter(self._events, hidden)
        self._reader: Reader | None = None
        self._opening = ""  # the mark, and what else led to the calls being read
        self._behind = False  # a call has just ended

    def push(self, text: str) -> list[Event]:
        self._buffer += text
        return self._run(final=False)

    def finish(self) -> list[Event]:
        self._run(final=True, take=False)
        # Separators and closing brackets behind a call are its markup; the beginning of another one is not.
        if self._reader is not None and (self._opening or self._reader.pending.strip(WHITESPACE + ",]}")):
            self._give_back(self._reader)
        self.content.end()
        return self._take()

    # ---- what a format defines

    @abstractmethod
    def reader(self, mark: str) -> Reader:
        """For what stands behind ``mark``."""

    def bare_reader(self, text: str) -> Reader | None:
        """For calls without a mark at the beginning of an answer; ``text`` begins it, without white space."""
        return None

    def behind_calls(self, text: str, *, final: bool) -> tuple[str, Reader | None] | None:
        """Calls have just ended: text that is left, and a reader if more calls follow without a mark;
        None when that cannot be told yet."""
        return text, None

    # ---- running

    def _take(self) -> list[Event]:
        events = self._events[:]
        self._events.clear()
        return events

    def _run(self, *, final: bool, take: bool = True) -> list[Event]:
        while self._buffer:
            if self._reader is not None:
                self._read(self._reader)
            elif self._behind:
                if not self._look_behind(final):
                    break
            elif not self._text(final):
                break
        return self._take() if take else []

    def _read(self, reader: Reader) -> None:
        found: list[Event] = []
        self._buffer = reader.feed(self._buffer, found)
        for event in found:
            if isinstance(event, CallStart):
                self.content.call()
                self._opening = ""
            self._events.append(event)
        if reader.state == "done" and not reader.pending:
            self._reader, self._behind = None, True
        elif reader.state != "reading":  # also a list without calls
            self._give_back(reader)

    def _give_back(self, reader: Reader) -> None:
        text, opening, rest = reader.pending, self._opening, ""
        if self._buffer and opening:
            # A mark may have begun where the reader saw the beginning of a list.
            text, _, rest = self._marks.split_end(text)
        self.content.write(opening + text)
        self._buffer = rest + self._buffer
        self._reader, self._opening = None, ""

    def _look_behind(self, final: bool) -> bool:
        looked = self.behind_calls(self._buffer, final=final)
        if looked is None:
            return False
        rest, self._reader = looked
        self._opening = self._buffer[: len(self._buffer) - len(rest)] if self._reader is not None else ""
        self._buffer, self._behind = rest, False
        return True

    def _text(self, final: bool) -> bool:
        """Take text up to a mark; False when the rest may become one."""
        if self.content.at_beginning:
            stripped = self._buffer.lstrip(WHITESPACE)
            reader = self.bare_reader(stripped) if stripped else None
            if reader is not None:
                self.content.write(self._buffer[: len(self._buffer) - len(stripped)])
                self._buffer, self._reader = stripped, reader
                return True
        before, mark, self._buffer = self._marks.split(self._buffer, final=final)
        self.content.write(before)
        if mark is None:
            return False
        if mark in self.starts:
            self._reader, self._opening = self.reader(mark), mark
        return True
