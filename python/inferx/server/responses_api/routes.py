"""The paths under ``/v1/responses``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inferx.server.context import ServerContext
from inferx.server.responses_api import endpoints
from inferx.server.responses_api.protocol import ResponsesRequest
from inferx.server.responses_api.store import ResponseStore
from inferx.server.routes import Endpoint, Route

OBJECT = {"type": "object"}


def _with_store(call: Callable[[ServerContext, ResponseStore, Request], Awaitable[Response]]) -> Endpoint:
    async def endpoint(context: ServerContext, request: Request) -> Response:
        return await call(context, context.part(ResponseStore), request)

    return endpoint


def _id(request: Request) -> str:
    return str(request.path_params["response_id"])


def _route(method: str, path: str, call: Any, summary: str, **more: Any) -> Route:
    return Route(method, f"/v1/responses{path}", _with_store(call), summary, response=OBJECT, **more)


RESPONSES_ROUTES = (
    _route(
        "POST",
        "",
        endpoints.create_response,
        "An answer to input items.",
        body=ResponsesRequest,
        events=OBJECT,
    ),
    _route(
        "POST",
        "/input_tokens",
        endpoints.count_input_tokens,
        "How many tokens that input has.",
        body=ResponsesRequest,
    ),
    _route(
        "GET",
        "/{response_id}",
        lambda context, store, request: endpoints.get_response(context, store, request, _id(request)),
        "A stored response.",
        events=OBJECT,
    ),
    _route(
        "DELETE",
        "/{response_id}",
        lambda context, store, request: endpoints.delete_response(store, _id(request)),
        "Forget a stored response.",
    ),
    _route(
        "POST",
        "/{response_id}/cancel",
        lambda context, store, request: endpoints.cancel_response(store, _id(request)),
        "End a response that runs in the background.",
    ),
    _route(
        "GET",
        "/{response_id}/input_items",
        lambda context, store, request: endpoints.list_input_items(store, request, _id(request)),
        "What a stored response was asked.",
    ),
)
