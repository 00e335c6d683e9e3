"""``/v1/responses`` and what belongs to it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inferx.server import limits_table as limits
from inferx.server.chat_core import ChatRun, prepare_chat
from inferx.server.chat_extensions import renamed
from inferx.server.context import ServerContext
from inferx.server.errors import ApiError, as_api_error, bad_request, shorten
from inferx.server.protocol import ChatCompletionRequest, parse_request
from inferx.server.responses import json_response
from inferx.server.responses_api.builder import ResponseBuilder
from inferx.server.responses_api.convert import PARAM_NAMES, chat_body, check_calls
from inferx.server.responses_api.items import Item, input_items
from inferx.server.responses_api.protocol import ResponsesRequest
from inferx.server.responses_api.running import Generation, stop
from inferx.server.responses_api.store import EventLog, Record, ResponseStore
from inferx.server.streaming import EventStream, respond_with_events, until_disconnect

MAX_LISTED_ITEMS = 100
DEFAULT_LISTED_ITEMS = 20


async def create_response(context: ServerContext, request: Request) -> Response:
    """Parse, validate, render; then whole, streamed or in the background."""
    store = context.part(ResponseStore)
    arrival = time.monotonic()
    body = parse_request(ResponsesRequest, await context.read_json(request))
    run, items = await _prepare(context, store, body, arrival)
    builder = ResponseBuilder(body, run.model, run.job.params, background=bool(body.background))
    record = Record(builder, items)
    generation = Generation(body, run, record, store)
    if body.background:
        record.log = EventLog(limits.EVENT_LOG_BYTES.most)
        generation.start_in_background()
        return _follow(context, record.log, 0) if body.stream else json_response(builder.response())
    outputs = run.start()
    if body.stream:
        args = context.args
        return await respond_with_events(
            request,
            outputs,
            lambda: generation.events(outputs),
            args.first_output_grace,
            args.keep_alive_interval,
            generation.framing(),
        )
    return json_response(await until_disconnect(request.receive, generation.whole(outputs)))


async def count_input_tokens(context: ServerContext, request: Request) -> Response:
    """``/v1/responses/input_tokens``: how long the prompt of such a request would be."""
    body = parse_request(ResponsesRequest, await context.read_json(request))
    run, _ = await _prepare(context, context.part(ResponseStore), body, time.monotonic())
    count = len(run.job.prompt_token_ids)
    return json_response({"object": "response.input_tokens", "input_tokens": count})


async def get_response(context: ServerContext, request: Request) -> Response:
    """The response as it is now; with ``stream=true`` the events of a background one after number
    ``starting_after``, up to its end."""
    record = _record(context, request)
    stream = _flag(request, "stream")
    after = _number(request, "starting_after", least=0, most=None)
    if not stream:
        if after is not None:
            raise bad_request("starting_after needs stream=true", "starting_after")
        return json_response(record.response())
    if record.log is None:
        raise bad_request("only responses created with background=true can be streamed later", "stream")
    return _follow(context, record.log, 0 if after is None else after + 1)


async def cancel_response(context: ServerContext, request: Request) -> Response:
    """End a background response; one that has ended stays as it is."""
    record = _record(context, request)
    if not record.background:
        raise bad_request(
            "only responses created with background=true can be cancelled; end others by disconnecting"
        )
    await stop(record)
    return json_response(record.response())


async def delete_response(context: ServerContext, request: Request) -> Response:
    """Forget a response, ending it first."""
    record = _record(context, request)
    context.part(ResponseStore).remove(record)
    await stop(record)
    return json_response({"id": record.id, "object": "response", "deleted": True})


async def list_input_items(context: ServerContext, request: Request) -> Response:
    """A page of the items that the response was made from, earlier turns included."""
    items = _record(context, request).items
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request(f"order: must be 'asc' or 'desc', got {shorten(order)}", "order")
    limit = _number(request, "limit", least=1, most=MAX_LISTED_ITEMS) or DEFAULT_LISTED_ITEMS
    listed = items if order == "asc" else items[::-1]
    after = request.query_params.get("after")
    if after is not None:
        places = [i for i, item in enumerate(listed) if item["id"] == after]
        if not places:
            raise bad_request(f"after: there is no item with the id {shorten(after)}", "after")
        listed = listed[places[0] + 1 :]
    page = listed[:limit]
    return json_response(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(listed) > limit,
        }
    )


# ---- the conversation


async def _prepare(
    context: ServerContext, store: ResponseStore, body: ResponsesRequest, arrival: float
) -> tuple[ChatRun, list[Item]]:
    """The conversation, ready to run, with its items; errors name this API's fields."""
    context.check_model(body.model)
    body.check()
    new = input_items(body.input)
    history = _history(store, body.previous_response_id)
    items = [*history, *new]
    limits.MESSAGES.check(len(items), "input, with the turns before it,")
    check_calls(items, len(history))
    try:
        return await _render(context, body, items, arrival), items
    except Exception as error:
        api_error = renamed(as_api_error(error), PARAM_NAMES)
        if body.truncation != "auto" or api_error.code != "context_length_exceeded":
            raise api_error from error
        return await _render_last_turns(context, body, items, arrival, api_error), items


def _history(store: ResponseStore, previous_id: str | None) -> list[Item]:
    if previous_id is None:
        return []
    record = store.find(previous_id, "previous_response_id", status=400)
    status = record.builder.status
    if status not in ("completed", "incomplete"):
        raise bad_request(
            f"previous_response_id: that response is {status}; only a completed or incomplete one can be "
            "continued",
            "previous_response_id",
        )
    return record.history()


async def _render(
    context: ServerContext, body: ResponsesRequest, items: list[Item], arrival: float
) -> ChatRun:
    chat = parse_request(ChatCompletionRequest, chat_body(body, items))
    return await prepare_chat(context, chat, arrival)


async def _render_last_turns(
    context: ServerContext, body: ResponsesRequest, items: list[Item], arrival: float, error: ApiError
) -> ChatRun:
    """``truncation: auto``: as many of the last turns as fit, behind the system messages that lead.

    A turn begins with a user's message, so calls stay with their outputs.  Found by bisection: a
    conversation of thousands of turns takes a dozen renderings.
    """
    lead = 0
    while lead < len(items) and items[lead].get("role") in ("system", "developer"):
        lead += 1
    starts = [i for i, item in enumerate(items) if i > lead and item.get("role") == "user"]
    low, high = 0, len(starts)  # the first start that fits lies in starts[low:high]
    best: ChatRun | None = None
    while low < high:
        middle = (low + high) // 2
        try:
            best = await _render(context, body, [*items[:lead], *items[starts[middle] :]], arrival)
            high = middle
        except Exception as other:
            if as_api_error(other).code != "context_length_exceeded":
                raise renamed(as_api_error(other), PARAM_NAMES) from other
            low = middle + 1
    if best is None:
        raise error
    return best


# ---- streams and parameters


def _record(context: ServerContext, request: Request) -> Record:
    return context.part(ResponseStore).find(request.path_params["response_id"])


class _NoOutputs:
    """An event stream over a log has no work of its own to end."""

    async def aclose(self) -> None: ...


def _follow(context: ServerContext, log: EventLog, start: int) -> Response:
    events: AsyncGenerator[bytes, None] = log.follow(start, context.args.keep_alive_interval)
    return EventStream(events, _NoOutputs())


def _flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "false")
    if value.lower() not in ("true", "false", "1", "0"):
        raise bad_request(f"{name}: must be true or false, got {shorten(value)}", name)
    return value.lower() in ("true", "1")


def _number(request: Request, name: str, *, least: int, most: int | None) -> int | None:
    value: Any = request.query_params.get(name)
    if value is None:
        return None
    plain = value.isascii() and value.isdigit() and len(value) <= 18
    if not plain or int(value) < least or (most is not None and int(value) > most):
        bounds = f"from {least} to {most}" if most is not None else f"at least {least}"
        raise bad_request(f"{name}: must be an integer, {bounds}, got {shorten(value)}", name)
    return int(value)
