"""One message while it grows: its content blocks, and the events that tell of every change.

Streamed and whole answers come from the same steps, so they cannot differ.
"""

from __future__ import annotations

import uuid
from typing import Any

from pydantic_core import from_json

from inferx.server.chat_core import ChatDelta, ToolCallDelta

Event = dict[str, Any]


class MessageBuilder:
    """Takes deltas of the chat core, gives events; ``message()`` is the object at any time.

    stop_sequences: those the caller named.  room_used_up: the context, and not max_tokens, bounds the
    answer.  show_thinking: whether the text of the thinking is in the answer.
    """

    def __init__(
        self,
        model: str,
        stop_sequences: list[str],
        *,
        room_used_up: bool = False,
        show_thinking: bool = True,
    ) -> None:
        self.id = f"msg_{uuid.uuid4().hex}"
        self.model = model
        self.stop_sequences = stop_sequences
        self.room_used_up = room_used_up
        self.show_thinking = show_thinking
        self.content: list[dict[str, Any]] = []
        self.stop_reason: str | None = None
        self.stop_sequence: str | None = None
        self._kind: str | None = None  # of the open block, the last of the content
        self._call: int | None = None  # its index among the calls, if it is one
        self._texts: list[str] = []

    def message(self, usage: dict[str, Any]) -> dict[str, Any]:
        """usage: counts in the chat endpoint's shape."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self.content,
            "stop_reason": self.stop_reason,
            "stop_sequence": self.stop_sequence,
            "usage": usage_object(usage),
        }

    def start(self, usage: dict[str, Any]) -> list[Event]:
        """The first output is there, so the prompt's share in the cache is known."""
        message = self.message({**usage, "completion_tokens": 0})
        return [{"type": "message_start", "message": {**message, "content": []}}, {"type": "ping"}]

    def advance(self, delta: ChatDelta) -> list[Event]:
        """What one output added."""
        events: list[Event] = []
        if delta.reasoning:
            events += self._enter("thinking")
            if self.show_thinking:
                events += self._grow("thinking_delta", "thinking", delta.reasoning)
        if delta.content:
            events += self._enter("text")
            events += self._grow("text_delta", "text", delta.content)
        for part in delta.tool_calls:
            events += self._call_part(part)
        return events

    def finish(
        self, finish_reason: str | None, stop_reason: int | str | None, usage: dict[str, Any]
    ) -> list[Event]:
        """Everything has been generated."""
        events = self._close()
        self._set_stop_reason(finish_reason, stop_reason)
        delta = {"stop_reason": self.stop_reason, "stop_sequence": self.stop_sequence}
        events.append({"type": "message_delta", "delta": delta, "usage": usage_object(usage)})
        events.append({"type": "message_stop"})
        return events

    def _set_stop_reason(self, finish_reason: str | None, stop_reason: int | str | None) -> None:
        if finish_reason == "length":
            self.stop_reason = "model_context_window_exceeded" if self.room_used_up else "max_tokens"
        elif isinstance(stop_reason, str) and stop_reason in self.stop_sequences:
            self.stop_reason, self.stop_sequence = "stop_sequence", stop_reason
        elif any(block["type"] == "tool_use" for block in self.content):
            self.stop_reason = "tool_use"
        else:
            self.stop_reason = "end_turn"

    # ---- blocks

    def _enter(self, kind: str) -> list[Event]:
        """Make sure that a block of this kind is the open one."""
        if self._kind == kind:
            return []
        block = {"type": "text", "text": ""} if kind == "text" else _thinking()
        return self._open(kind, block)

    def _open(self, kind: str, block: dict[str, Any]) -> list[Event]:
        events = self._close()
        self._kind = kind
        self._texts = []
        events.append(
            {"type": "content_block_start", "index": len(self.content), "content_block": dict(block)}
        )
        self.content.append(block)
        return events

    def _grow(self, delta_type: str, field: str, text: str) -> list[Event]:
        self._texts.append(text)
        index = len(self.content) - 1
        return [{"type": "content_block_delta", "index": index, "delta": {"type": delta_type, field: text}}]

    def _call_part(self, part: ToolCallDelta) -> list[Event]:
        events: list[Event] = []
        if self._kind != "tool_use" or self._call != part.index:
            call = part.id or f"toolu_{uuid.uuid4().hex}"
            events += self._open(
                "tool_use", {"type": "tool_use", "id": call, "name": part.name or "", "input": {}}
            )
            self._call = part.index
        if part.arguments:
            events += self._grow("input_json_delta", "partial_json", part.arguments)
        return events

    def _close(self) -> list[Event]:
        """End the open block: its text, or its input, is complete."""
        if self._kind is None:
            return []
        block = self.content[-1]
        text = "".join(self._texts)
        if self._kind == "tool_use":
            block["input"] = parse_input(text)
        else:
            block[self._kind] = text
        self._kind = self._call = None
        return [{"type": "content_block_stop", "index": len(self.content) - 1}]


def _thinking() -> dict[str, Any]:
    # Nothing is signed here, and nothing that comes back needs to be.
    return {"type": "thinking", "thinking": "", "signature": ""}


def parse_input(arguments: str) -> dict[str, Any]:
    """A call's arguments as an object; of arguments that were cut off, what is complete, as Anthropic's
    clients read them from a stream."""
    try:
        value = from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def usage_object(usage: dict[str, Any]) -> dict[str, Any]:
    """Anthropic counts cached tokens apart: the prompt is the sum of the three."""
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }
