"""``/v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inferx.server.anthropic.builder import Event, MessageBuilder
from inferx.server.anthropic.convert import PARAM_NAMES, chat_body
from inferx.server.anthropic.errors import error_event
from inferx.server.anthropic.protocol import Conversation, MessagesRequest
from inferx.server.chat_core import ChatRun, prepare_chat
from inferx.server.chat_extensions import renamed
from inferx.server.context import ServerContext
from inferx.server.errors import as_api_error
from inferx.server.generation import OutputStream
from inferx.server.protocol import ChatCompletionRequest, parse_request
from inferx.server.responses import json_response
from inferx.server.streaming import Framing, respond_with_events, typed_event, until_disconnect

FRAMING = Framing(
    typed_event,
    error=lambda error: typed_event(error_event(error)),
    keep_alive=typed_event({"type": "ping"}),
    end=b"",
)


async def create_message(context: ServerContext, request: Request) -> Response:
    """Parse, validate, render, run; streamed or whole."""
    arrival = time.monotonic()
    body = parse_request(MessagesRequest, await context.read_json(request))
    run, room_used_up = await _prepare(context, body, arrival)
    builder = MessageBuilder(
        run.model,
        body.stop_sequences or [],
        room_used_up=room_used_up,
        show_thinking=body.shows_thinking,
    )
    outputs = run.start()
    if body.stream:
        args = context.args
        return await respond_with_events(
            request,
            outputs,
            lambda: _events(run, builder, outputs),
            args.first_output_grace,
            args.keep_alive_interval,
            FRAMING,
        )
    return json_response(await until_disconnect(request.receive, _whole(run, builder, outputs)))


async def count_tokens(context: ServerContext, request: Request) -> Response:
    """How many tokens the prompt of such a message has."""
    body = parse_request(Conversation, await context.read_json(request))
    run = await _render(context, chat_body(body), time.monotonic())
    return json_response({"input_tokens": len(run.job.prompt_token_ids)})


async def _prepare(context: ServerContext, body: MessagesRequest, arrival: float) -> tuple[ChatRun, bool]:
    """The conversation, ready to run, and whether the context bounds it rather than max_tokens.

    max_tokens is required by this API, so that clients name the most they would take: more than the
    context has room for is no mistake.
    """
    data = chat_body(body)
    try:
        return await _render(context, data, arrival), False
    except Exception as error:
        api_error = as_api_error(error)
        if api_error.code != "context_length_exceeded" or api_error.param != "max_tokens":
            raise
    del data["max_completion_tokens"]
    return await _render(context, data, arrival), True


async def _render(context: ServerContext, data: dict[str, Any], arrival: float) -> ChatRun:
    """prepare_chat with errors that name this API's fields."""
    try:
        return await prepare_chat(context, parse_request(ChatCompletionRequest, data), arrival)
    except Exception as error:
        raise renamed(as_api_error(error), PARAM_NAMES) from error


async def _events(
    run: ChatRun, builder: MessageBuilder, outputs: OutputStream
) -> AsyncGenerator[Event, None]:
    started = False
    async for deltas in run.deltas(outputs):
        if not started:
            started = True
            for event in builder.start(run.usage.as_dict()):
                yield event
        for delta in deltas:
            for event in builder.advance(delta):
                yield event
    choice = run.choices[0]
    for event in builder.finish(choice.finish_reason, choice.stop_reason, run.usage.as_dict()):
        yield event


async def _whole(run: ChatRun, builder: MessageBuilder, outputs: OutputStream) -> dict[str, Any]:
    try:
        async for _ in _events(run, builder, outputs):
            pass
    finally:
        await outputs.aclose()
    return builder.message(run.usage.as_dict())
