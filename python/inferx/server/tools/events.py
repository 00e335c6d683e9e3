"""What a parser of tool calls finds in a text, in the order of the text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(slots=True)
class CallStart:
    """A call of the function ``name`` begins."""

    name: str


@dataclass(slots=True)
class CallArguments:
    """The next piece of the running call's arguments, JSON text as the model wrote it."""

    text: str


@dataclass(slots=True)
class CallEnd:
    """The running call's arguments are complete.  Without it, they were cut or broke off."""


Event = Content | CallStart | CallArguments | CallEnd


def merged(events: list[Event]) -> list[Event]:
    """``events`` with neighbouring texts joined: the same for every way to cut the text."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + event.text)
        elif isinstance(event, CallArguments) and isinstance(last, CallArguments):
            result[-1] = CallArguments(last.text + event.text)
        else:
            result.append(event)
    return result
