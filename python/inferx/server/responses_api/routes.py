"""The paths under ``/v1/responses``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.responses import Response

from inferx.server.context import context_of
from inferx.server.responses_api import endpoints
from inferx.server.responses_api.protocol import ResponsesRequest
from inferx.server.responses_api.store import ResponseStore

Answer = Callable[[Awaitable[Response]], Awaitable[Response]]
BodySchema = Callable[[type[BaseModel]], dict[str, Any]]


def add_responses_routes(app: FastAPI, answer: Answer, body_schema: BodySchema) -> None:
    """answer: an endpoint's response or its error as one.  body_schema: declares a body read by hand."""
    store = ResponseStore()
    schema = body_schema(ResponsesRequest)

    @app.post("/v1/responses", openapi_extra=schema)
    async def create_response(request: Request) -> Response:
        return await answer(endpoints.create_response(context_of(request), store, request))

    @app.post("/v1/responses/input_tokens", openapi_extra=schema)
    async def count_input_tokens(request: Request) -> Response:
        return await answer(endpoints.count_input_tokens(context_of(request), store, request))

    @app.get("/v1/responses/{response_id}")
    async def get_response(request: Request, response_id: str) -> Response:
        return await answer(endpoints.get_response(context_of(request), store, request, response_id))

    @app.delete("/v1/responses/{response_id}")
    async def delete_response(request: Request, response_id: str) -> Response:
        return await answer(endpoints.delete_response(store, response_id))

    @app.post("/v1/responses/{response_id}/cancel")
    async def cancel_response(request: Request, response_id: str) -> Response:
        return await answer(endpoints.cancel_response(store, response_id))

    @app.get("/v1/responses/{response_id}/input_items")
    async def list_input_items(request: Request, response_id: str) -> Response:
        return await answer(endpoints.list_input_items(store, request, response_id))
