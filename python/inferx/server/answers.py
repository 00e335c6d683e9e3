"""From a model's text to the parts of a message: reasoning, content, calls."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, field

from inferx.errors import InvalidRequestError
from inferx.server.args import ServerArgs
from inferx.server.engine_api import Tokenizer
from inferx.server.reasoning import THINK_MARKS, Start, ThinkParser, speaks_of_thinking
from inferx.server.tools.choice import ToolPlan
from inferx.server.tools.events import CallArguments, CallEnd, CallStart, Content, Event
from inferx.server.tools.forced import NamedParser, RequiredParser
from inferx.server.tools.parser import ToolParser
from inferx.server.tools.registry import MARKS, detect_format, make_parser

logger = logging.getLogger("inferx.server")


@dataclass(slots=True)
class ToolCallDelta:
    """A part of one call.  ``id`` and ``name``: in the call's first delta only; ``arguments``: the next
    piece of their JSON text."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class AnswerFormats:
    """How this server's model writes calls and reasoning; found out once, from its chat template.

    tool_format: a name of the registry, or None.  thinking: whether reasoning is told apart.
    """

    def __init__(self, tokenizer: Tokenizer, args: ServerArgs) -> None:
        template = _template(tokenizer)
        chosen = args.tool_call_parser
        self.tool_format = (
            detect_format(template) if chosen == "auto" else None if chosen == "none" else chosen
        )
        self.thinking = {"auto": speaks_of_thinking(template), "none": False, "think": True}[
            args.reasoning_parser
        ]
        self._special: dict[str, int] = {}
        for mark in (*(m for marks in MARKS.values() for m in marks), *THINK_MARKS):
            token = tokenizer.token_to_id(mark)
            if token is not None and tokenizer.is_special(token):
                self._special[mark] = token
        self._warned = False
        logger.info(
            "tool calls: %s; reasoning: %s", self.tool_format or "none", "think" if self.thinking else "none"
        )

    def warn_of_unread_calls(self, tools: ToolPlan) -> None:
        """Say once that a request's tools can be called in a way that nothing here reads."""
        if tools.mode == "auto" and self.tool_format is None and not self._warned:
            self._warned = True
            logger.warning(
                "a request has tools, but the chat template says nothing of a known format of calls; "
                "--tool-call-parser names one (said once)"
            )

    def special(self, marks: tuple[str, ...]) -> dict[str, int]:
        """Those of ``marks`` that are special tokens, with their ids."""
        return {mark: self._special[mark] for mark in marks if mark in self._special}

    def new_call_id(self) -> str:
        # Mistral's templates insist on nine letters or digits.
        return uuid.uuid4().hex[:9] if self.tool_format == "mistral" else f"call_{uuid.uuid4().hex[:24]}"


def _template(tokenizer: Tokenizer) -> str:
    if not tokenizer.has_chat_template:
        return ""
    try:
        return str(tokenizer.chat_template.source)
    except InvalidRequestError:  # does not compile; every chat will say so
        return ""


@dataclass(frozen=True)
class AnswerPlan:
    """How the answers of one request are to be read.  start: where they begin as to reasoning; None: it is
    not told apart.  show_special: special tokens are part of the text anyway."""

    formats: AnswerFormats
    tools: ToolPlan
    start: Start | None
    show_special: bool = False

    @property
    def reads_calls(self) -> bool:
        return self.tools.mode == "auto" and self.formats.tool_format is not None

    @property
    def marks(self) -> tuple[str, ...]:
        """What the parsers look for."""
        marks = MARKS[self.formats.tool_format] if self.reads_calls and self.formats.tool_format else ()
        return (*marks, *(THINK_MARKS if self.start is not None else ()))

    @property
    def shown_token_ids(self) -> list[int]:
        """Special tokens that must show in the text for the parsers' sake."""
        return [] if self.show_special else sorted(self.formats.special(self.marks).values())

    def parser(self) -> AnswerParser | None:
        """For one answer; None when its text is its content."""
        hidden = frozenset() if self.show_special else frozenset(self.formats.special(self.marks))
        think = None if self.start in (None, "closed") else ThinkParser(
            self.start, hidden=not hidden.isdisjoint(THINK_MARKS)
        )  # fmt: skip
        tools = self._tool_parser(hidden)
        if think is None and tools is None:
            return None
        return AnswerParser(think, tools, self.formats, single=self.tools.single)

    def _tool_parser(self, hidden: frozenset[str]) -> ToolParser | None:
        if self.tools.mode == "named":
            assert self.tools.function is not None
            return NamedParser(self.tools.function)
        if self.tools.mode == "required":
            return RequiredParser()
        if not self.reads_calls:
            return None
        assert self.formats.tool_format is not None
        return make_parser(self.formats.tool_format, self.tools.names, hidden)


@dataclass(slots=True)
class Parsed:
    """What a piece of text added to a message."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)


class AnswerParser:
    """One answer.  complete: calls were made, and all their arguments are complete."""

    def __init__(
        self, think: ThinkParser | None, tools: ToolParser | None, formats: AnswerFormats, *, single: bool
    ) -> None:
        self._think = think
        self._tools = tools
        self._formats = formats
        self._single = single
        self._num_calls = 0
        self._open = False

    @property
    def complete(self) -> bool:
        return self._num_calls > 0 and not self._open

    def push(self, text: str, *, final: bool) -> Parsed:
        parsed = Parsed(content=text)
        if self._think is not None:
            parsed.reasoning, parsed.content = self._think.push(text, final=final)
        if self._tools is not None:
            events = self._tools.push(parsed.content) if parsed.content else []
            if final:
                events += self._tools.finish()
            parsed.content = ""
            for event in events:
                self._take(event, parsed)
        return parsed

    def _take(self, event: Event, parsed: Parsed) -> None:
        if isinstance(event, Content):
            parsed.content += event.text
            return
        if isinstance(event, CallStart):
            self._num_calls += 1
            self._open = True
        if self._single and self._num_calls > 1:
            self._open = False  # more than was asked for: left out
            return
        index = self._num_calls - 1
        calls = parsed.tool_calls
        if isinstance(event, CallStart):
            calls.append(ToolCallDelta(index, self._formats.new_call_id(), event.name))
        elif isinstance(event, CallArguments):
            if not calls or calls[-1].index != index:
                calls.append(ToolCallDelta(index))
            calls[-1].arguments += event.text
        elif isinstance(event, CallEnd):
            self._open = False
