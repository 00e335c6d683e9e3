"""One response while it grows: its items, its object, and the events that tell of every change.

Streamed and whole answers come from the same steps, so they cannot differ: a whole answer is what the object
looks like after the last event.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from inferx.sampling_params import SamplingParams
from inferx.server.chat_core import ChatDelta, ToolCallDelta
from inferx.server.chat_extensions import ReasoningTokens
from inferx.server.errors import as_api_error, printable
from inferx.server.responses_api.items import Item, new_item_id
from inferx.server.responses_api.protocol import ResponsesRequest

Event = dict[str, Any]

# OpenAI's codes for a response that failed; everything else is the server's.
ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponseBuilder:
    """Takes deltas of the chat core, gives events; ``response()`` is the object at any time.

    Each method returns the events it caused, numbered on from the last.
    """

    def __init__(
        self, body: ResponsesRequest, model: str, params: SamplingParams, *, background: bool = False
    ) -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self.status = "queued" if background else "in_progress"
        self.output: list[Item] = []
        self._settings = _settings(body, model, params)
        self._created = int(time.time())
        self._sequence = 0
        self._started = False
        self._item: _OpenItem | None = None
        self._held: list[dict[str, Any]] = []  # log-probabilities whose text has not come yet
        self._reasoning_tokens = ReasoningTokens()
        self._error: dict[str, Any] | None = None
        self._usage: dict[str, Any] | None = None
        self._metrics: dict[str, Any] | None = None
        self._completed: int | None = None
        self._incomplete: dict[str, str] | None = None

    @property
    def finished(self) -> bool:
        return self.status not in ("queued", "in_progress")

    def response(self) -> dict[str, Any]:
        """The response object as it is now; later changes do not show in it."""
        items = list(self.output)
        if self._item is not None:
            items.append(self._item.item("in_progress"))
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": self._completed,
            "status": self.status,
            "error": self._error,
            "incomplete_details": self._incomplete,
            "output": items,
            "usage": self._usage,
            "metrics": self._metrics,
            **self._settings,
        }

    # ---- the response's course

    def start(self) -> list[Event]:
        """The response exists; a background one waits."""
        self._started = True
        events = [self._lifecycle("created")]
        if self.status == "queued":
            events.append(self._lifecycle("queued"))
        return events

    def begin(self) -> list[Event]:
        """Its first output is there."""
        self.status = "in_progress"
        return [self._lifecycle("in_progress")]

    def advance(self, delta: ChatDelta, logprobs: list[dict[str, Any]]) -> list[Event]:
        """What one output added.  logprobs: of the delta's content."""
        events: list[Event] = []
        self._reasoning_tokens.take(delta)
        self._held += logprobs
        if delta.reasoning:
            events += self._enter("reasoning")
            events += self._grow(delta.reasoning, [])
        if delta.content:
            events += self._enter("message")
            events += self._grow(delta.content, self._take_held())
        if delta.reasoning or delta.tool_calls:
            self._held = []  # what is left is not of a message's text
        for part in delta.tool_calls:
            events += self._call(part)
        return events

    def finish(
        self, finish_reason: str | None, usage: dict[str, Any], metrics: dict[str, Any] | None
    ) -> list[Event]:
        """Everything has been generated."""
        cut = finish_reason == "length"
        events: list[Event] = []
        if not self.output and self._item is None:
            events += self._enter("message")  # an empty answer is an answer
        if self._held and self._open_is("message"):
            events += self._grow("", self._take_held())  # an end token has no text
        events += self._close("incomplete" if cut else "completed")
        self.set_usage(usage, metrics)
        if cut:
            self.status, self._incomplete = "incomplete", {"reason": "max_output_tokens"}
        else:
            self.status, self._completed = "completed", int(time.time())
        return [*events, self._lifecycle(self.status)]

    def set_usage(self, usage: dict[str, Any], metrics: dict[str, Any] | None) -> None:
        """usage: counts in the chat endpoint's shape."""
        self._usage = usage_object(usage, self._reasoning_tokens.count)
        self._metrics = metrics

    def fail(self, error: BaseException) -> list[Event]:
        """It ends with an error; what was generated until then stays in the object, as incomplete."""
        events = [] if self._started else self.start()
        self._abandon()
        api_error = as_api_error(error)
        self.status = "failed"
        self._error = {
            "code": ERROR_CODES.get(api_error.status, "server_error"),
            "message": printable(api_error.message),
        }
        return [*events, self._lifecycle("failed")]

    def cancel(self) -> list[Event]:
        """Someone asked for its end.  OpenAI has no event for it: the stream ends with the object."""
        self._abandon()
        self.status = "cancelled"
        return [self._lifecycle("cancelled")]

    # ---- items

    def _open_is(self, kind: str) -> bool:
        return self._item is not None and self._item.kind == kind

    def _enter(self, kind: str) -> list[Event]:
        """Make sure that an item of this kind is the open one."""
        if self._open_is(kind):
            return []
        events = self._close("completed")
        self._item = item = _MessageItem() if kind == "message" else _ReasoningItem()
        events.append(self._item_event("response.output_item.added", item.empty()))
        events.append(self._part_event("response.content_part.added", item.part("", [])))
        return events

    def _take_held(self) -> list[dict[str, Any]]:
        held, self._held = self._held, []
        return held

    def _grow(self, text: str, logprobs: list[dict[str, Any]]) -> list[Event]:
        item = self._item
        assert isinstance(item, _TextItem)
        item.add(text, logprobs)
        extra = {"logprobs": logprobs} if item.kind == "message" else {}
        return [self._place(f"response.{item.part_type}.delta", content_index=0, delta=text, **extra)]

    def _call(self, part: ToolCallDelta) -> list[Event]:
        events: list[Event] = []
        item = self._item
        if not isinstance(item, _CallItem) or item.index != part.index:
            events += self._close("completed")
            self._item = item = _CallItem(part)
            events.append(self._item_event("response.output_item.added", item.empty()))
        if part.arguments:
            item.add(part.arguments)
            events.append(self._place("response.function_call_arguments.delta", delta=part.arguments))
        return events

    def _close(self, status: str) -> list[Event]:
        """End the open item."""
        item = self._item
        if item is None:
            return []
        events: list[Event] = []
        if isinstance(item, _CallItem):
            done = "response.function_call_arguments.done"
            events.append(self._place(done, name=item.name, arguments=item.text))
        elif isinstance(item, _TextItem):
            extra = {"logprobs": item.logprobs} if item.kind == "message" else {}
            done = f"response.{item.part_type}.done"
            events.append(self._place(done, content_index=0, text=item.text, **extra))
            events.append(self._part_event("response.content_part.done", item.part(item.text, item.logprobs)))
        whole = item.item(status)
        events.append(self._item_event("response.output_item.done", whole))
        self.output.append(whole)
        self._item = None
        return events

    def _abandon(self) -> None:
        if self._item is not None:
            self.output.append(self._item.item("incomplete"))
            self._item = None

    # ---- events

    def _event(self, kind: str, **fields: Any) -> Event:
        number, self._sequence = self._sequence, self._sequence + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _lifecycle(self, name: str) -> Event:
        return self._event(f"response.{name}", response=self.response())

    def _item_event(self, kind: str, item: Item) -> Event:
        return self._event(kind, output_index=len(self.output), item=item)

    def _place(self, kind: str, **fields: Any) -> Event:
        assert self._item is not None
        return self._event(kind, item_id=self._item.id, output_index=len(self.output), **fields)

    def _part_event(self, kind: str, part: dict[str, Any]) -> Event:
        return self._place(kind, content_index=0, part=part)


class _OpenItem:
    """An item that still grows."""

    kind = ""
    prefix = ""

    def __init__(self) -> None:
        self.id = new_item_id(self.prefix)
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def empty(self) -> Item:
        """The item before anything is in it."""
        raise NotImplementedError

    def item(self, status: str) -> Item:
        """The item with what it has so far."""
        raise NotImplementedError


class _TextItem(_OpenItem):
    """An item with one part of text."""

    part_type = ""

    def __init__(self) -> None:
        super().__init__()
        self.logprobs: list[dict[str, Any]] = []

    def add(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        self._texts.append(text)
        self.logprobs += logprobs

    def part(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        raise NotImplementedError


class _MessageItem(_TextItem):
    kind, prefix, part_type = "message", "msg", "output_text"

    def part(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}

    def empty(self) -> Item:
        return self._with("in_progress", [])

    def item(self, status: str) -> Item:
        return self._with(status, [self.part(self.text, self.logprobs)])

    def _with(self, status: str, content: list[dict[str, Any]]) -> Item:
        return {
            "type": "message",
            "id": self.id,
            "status": status,
            "role": "assistant",
            "content": content,
        }


class _ReasoningItem(_TextItem):
    kind, prefix, part_type = "reasoning", "rs", "reasoning_text"

    def part(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}

    def empty(self) -> Item:
        return self._with("in_progress", [])

    def item(self, status: str) -> Item:
        return self._with(status, [self.part(self.text, [])])

    def _with(self, status: str, content: list[dict[str, Any]]) -> Item:
        return {"type": "reasoning", "id": self.id, "status": status, "summary": [], "content": content}


class _CallItem(_OpenItem):
    kind, prefix = "function_call", "fc"

    def __init__(self, first: ToolCallDelta) -> None:
        super().__init__()
        self.index = first.index
        self.call_id = first.id or new_item_id("call")
        self.name = first.name or ""

    def add(self, arguments: str) -> None:
        self._texts.append(arguments)

    def empty(self) -> Item:
        return self._with("in_progress", "")

    def item(self, status: str) -> Item:
        return self._with(status, self.text)

    def _with(self, status: str, arguments: str) -> Item:
        return {
            "type": "function_call",
            "id": self.id,
            "status": status,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": arguments,
        }


def usage_object(usage: dict[str, Any], reasoning_tokens: int) -> dict[str, Any]:
    """Counts in the chat endpoint's shape under this API's names."""
    prompt = usage.get("prompt_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": prompt.get("cached_tokens", 0),
            "cache_write_tokens": 0,  # writing costs nothing here
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage["total_tokens"],
    }


def _settings(body: ResponsesRequest, model: str, params: SamplingParams) -> dict[str, Any]:
    """The request's settings as the response repeats them, with the sampling defaults filled in."""
    text = body.text
    reasoning = body.reasoning
    summary = None if reasoning is None else reasoning.summary or reasoning.generate_summary
    return {
        "model": model,
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": summary},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.stored,
        "temperature": params.temperature,
        "text": {
            "format": (None if text is None else text.format) or {"type": "text"},
            "verbosity": (None if text is None else text.verbosity) or "medium",
        },
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }
