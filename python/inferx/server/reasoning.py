"""Telling a model's reasoning from its answer: ``<think>...</think>`` at the beginning."""

from __future__ import annotations

import re
from typing import Literal

from inferx.server.tools.json_stream import WHITESPACE
from inferx.server.tools.parser import Marks

OPEN, CLOSE = "<think>", "</think>"
THINK_MARKS = (OPEN, CLOSE)
# Where an answer begins: it may open a block, it is inside of one, or there is none any more.
Start = Literal["possible", "open", "closed"]
# Ids at the end of a prompt that can hold a mark which the template wrote.
TAIL_TOKENS = 24


def speaks_of_thinking(template: str) -> bool:
    """Whether a chat template knows reasoning blocks."""
    return OPEN in template or CLOSE in template


def start_behind_prompt(tail: str) -> Start:
    """Where an answer begins after a prompt that ends with ``tail``: templates may open the block, or close
    an empty one so that the model does not reason."""
    tail = tail.rstrip()
    return "open" if tail.endswith(OPEN) else "closed" if tail.endswith(CLOSE) else "possible"


def start_behind_prefill(text: str) -> Start:
    """Where an answer goes on that has begun with ``text``."""
    marks = re.findall(f"{OPEN}|{CLOSE}", text)
    if marks and marks[-1] == OPEN:
        return "open"
    return "closed" if text.strip() else "possible"


class ThinkParser:
    """Splits one answer, in pieces, into reasoning and the rest; the same however it is cut.

    White space at the edges of the block is its markup.  A block that never ends is all reasoning; marks
    behind the block are text.  hidden: the marks are special tokens, which never show.
    """

    def __init__(self, start: Start, *, hidden: bool = False) -> None:
        self._state = start
        self._buffer = ""
        self._space = ""  # held: at the end of the block it is dropped
        self._begun = False  # something of the reasoning, or of what follows the block, is out
        self._after_block = False
        self._close = Marks([CLOSE])
        self._hidden = Marks(THINK_MARKS if hidden else [])

    def push(self, text: str, *, final: bool = False) -> tuple[str, str]:
        """(reasoning, answer) that are certain with this piece."""
        self._buffer += text
        if self._state == "possible" and not self._decide(final):
            return "", ""
        reasoning = self._reasoning(final) if self._state == "open" else ""
        return reasoning, self._answer(final) if self._state == "closed" else ""

    def _decide(self, final: bool) -> bool:
        text = self._buffer.lstrip(WHITESPACE)
        if text.startswith(OPEN):
            self._state, self._buffer = "open", text[len(OPEN) :]
        elif final or not OPEN.startswith(text):
            self._state = "closed"
        return self._state != "possible"

    def _reasoning(self, final: bool) -> str:
        before, mark, self._buffer = self._close.split(self._buffer, final=final)
        text = self._space + before
        if not self._begun:
            text = text.lstrip(WHITESPACE)
        visible = text.rstrip(WHITESPACE)
        self._space = text[len(visible) :]
        self._begun = self._begun or bool(visible)
        if mark is not None:
            self._state, self._begun, self._after_block, self._space = "closed", False, True, ""
        return visible

    def _answer(self, final: bool) -> str:
        parts = []
        while True:
            before, mark, self._buffer = self._hidden.split(self._buffer, final=final)
            parts.append(before)
            if mark is None:
                break
        text = "".join(parts)
        if self._after_block and not self._begun:
            text = text.lstrip(WHITESPACE)
            self._begun = bool(text)
        return text
