"""``/v1/chat/completions``: the shapes of OpenAI's objects around ``chat_core``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inferx.server.chat_core import ChatDelta, ChatRun, ToolCallDelta, prepare_chat
from inferx.server.context import ServerContext
from inferx.server.generation import OutputStream
from inferx.server.logprobs import chat_logprobs, prompt_logprobs
from inferx.server.protocol import ChatCompletionRequest, parse_request
from inferx.server.responses import json_response
from inferx.server.streaming import EventData, respond_with_events, until_disconnect
from inferx.server.text_event import TextEvent
from inferx.server.usage import add_continuous_usage, latency_split, response_metrics


async def create_chat_completion(context: ServerContext, request: Request) -> Response:
    """Parse, validate, render, run; streamed or whole."""
    arrival = time.monotonic()
    body = parse_request(ChatCompletionRequest, await context.read_json(request))
    chat = ChatCompletion(await prepare_chat(context, body, arrival))
    outputs = chat.run.start()
    if body.stream:
        args = context.args
        return await respond_with_events(
            request, outputs, lambda: chat.events(outputs), args.first_output_grace, args.keep_alive_interval
        )
    return json_response(await until_disconnect(request.receive, chat.whole(outputs)))


class ChatCompletion:
    """One response: turns deltas into the API's objects."""

    def __init__(self, run: ChatRun) -> None:
        self.run = run
        self.body = run.body
        self._names = run.context.names
        self._text_events: dict[int, TextEvent] = {}

    async def whole(self, outputs: OutputStream) -> dict[str, Any]:
        """The response object once everything has finished."""
        answers = await self.run.whole(outputs)
        response = self._envelope("chat.completion", [self._whole_choice(answer) for answer in answers])
        response["usage"] = self.run.usage.as_dict()
        response["metrics"] = response_metrics([answer.metrics for answer in answers])
        if self.body.prompt_logprobs is not None:
            response["prompt_logprobs"] = prompt_logprobs(self.run.prompt_entries, self._names)
        if self.body.return_token_ids:
            response["prompt_token_ids"] = self.run.job.prompt_token_ids
        return response

    async def events(self, outputs: OutputStream) -> AsyncGenerator[EventData, None]:
        """The chunks of a streamed response; each choice begins with its role."""
        only_text = not (self.body.logprobs or self.body.return_token_ids or self.body.continuous_usage)
        started = [False] * len(self.run.choices)
        async for deltas in self.run.deltas(outputs):
            for delta in deltas:
                if not started[delta.index]:
                    started[delta.index] = True
                    first = self._chunk(
                        ChatDelta(delta.index), {"role": "assistant", "content": ""}, first=True
                    )
                    if self.body.return_token_ids and sum(started) == 1:
                        first["prompt_token_ids"] = self.run.job.prompt_token_ids
                    yield add_continuous_usage(first, self.body.continuous_usage, self.run.usage)
                if not self._shows(delta):
                    continue
                if only_text and delta.only_content:
                    yield self._text_event(delta.index)(delta.content)
                    continue
                chunk = self._chunk(delta, _message_delta(delta))
                if delta.metrics is not None:
                    chunk["metrics"] = latency_split(delta.metrics)
                yield add_continuous_usage(chunk, self.body.continuous_usage, self.run.usage)
        if self.body.include_usage:
            chunk = self._envelope("chat.completion.chunk", [])
            chunk["usage"] = self.run.usage.as_dict()
            chunk["metrics"] = response_metrics([c.metrics for c in self.run.choices])
            yield chunk

    def _text_event(self, index: int) -> TextEvent:
        made = self._text_events.get(index)
        if made is None:
            made = TextEvent(lambda text: self._chunk(ChatDelta(index), {"content": text}))
            self._text_events[index] = made
        return made

    def _shows(self, delta: ChatDelta) -> bool:
        ids = delta.token_ids and self.body.return_token_ids
        return bool(delta.has_text or delta.tokens or delta.finish_reason or ids)

    def _logprobs(self, delta: ChatDelta) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        return chat_logprobs(delta.tokens, self._names, self.body.top_logprobs or 0)

    def _whole_choice(self, answer: ChatDelta) -> dict[str, Any]:
        item = {
            "index": answer.index,
            "message": _message(answer),
            "logprobs": self._logprobs(answer),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }
        if self.body.return_token_ids:
            item["token_ids"] = answer.token_ids
        return item

    def _chunk(self, delta: ChatDelta, message: dict[str, Any], first: bool = False) -> dict[str, Any]:
        item: dict[str, Any] = {
            "index": delta.index,
            "delta": message,
            "logprobs": None if first else self._logprobs(delta),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            item["stop_reason"] = delta.stop_reason
        if self.body.return_token_ids and not first:
            item["token_ids"] = delta.token_ids
        return self._envelope("chat.completion.chunk", [item])

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.run.job.request_id,
            "object": kind,
            "created": self.run.created,
            "model": self.run.model,
            "choices": choices,
        }


def _message(answer: ChatDelta) -> dict[str, Any]:
    """The assistant's message; its content is null when there was nothing but calls."""
    content = answer.content if answer.content or not answer.tool_calls else None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if answer.reasoning:
        message |= _reasoning(answer.reasoning)
    if answer.tool_calls:
        message["tool_calls"] = [_tool_call(call) for call in answer.tool_calls]
    return message


def _message_delta(delta: ChatDelta) -> dict[str, Any]:
    message: dict[str, Any] = {}
    if delta.content:
        message["content"] = delta.content
    if delta.reasoning:
        message |= _reasoning(delta.reasoning)
    if delta.tool_calls:
        message["tool_calls"] = [{"index": part.index, **_tool_call(part)} for part in delta.tool_calls]
    return message


def _reasoning(text: str) -> dict[str, str]:
    # The older name is what most clients read, the newer one what vLLM has moved to.
    return {"reasoning_content": text, "reasoning": text}


def _tool_call(part: ToolCallDelta) -> dict[str, Any]:
    if part.id is None:
        return {"function": {"arguments": part.arguments}}
    return {
        "id": part.id,
        "type": "function",
        "function": {"name": part.name, "arguments": part.arguments},
    }
