"""The HTTP application: routes to endpoints, nothing else."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from inferx import __version__
from inferx.server import chat, completions, info, tokenize
from inferx.server.args import ServerArgs
from inferx.server.context import ServerContext, context_of
from inferx.server.engine_api import AsyncEngine
from inferx.server.errors import error_response, handle_error
from inferx.server.limits import ApiKeyGuard, HeaderLimit
from inferx.server.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from inferx.server.responses_api.routes import add_responses_routes

CLIENT_CLOSED_REQUEST = 499  # nginx's; only seen in the access log


def create_app(engine: AsyncEngine, args: ServerArgs | None = None) -> FastAPI:
    """The application over an engine that has been started."""
    args = args or ServerArgs()
    # No interactive documentation: its pages load scripts from elsewhere.
    app = FastAPI(title="inferx", version=__version__, docs_url=None, redoc_url=None)
    app.state.context = ServerContext(engine, args)
    _add_generation_routes(app)
    add_responses_routes(app, _answer, _body_schema)
    _add_text_routes(app)
    _add_info_routes(app)
    app.add_exception_handler(HTTPException, handle_error)  # unknown paths and methods
    if args.api_key:
        app.add_middleware(ApiKeyGuard, api_key=args.api_key)
    app.add_middleware(HeaderLimit, max_bytes=args.max_header_bytes, max_headers=args.max_headers)
    return app


def _add_generation_routes(app: FastAPI) -> None:
    @app.post("/v1/completions", openapi_extra=_body_schema(CompletionRequest))
    async def create_completion(request: Request) -> Response:
        return await _answer(completions.create_completion(context_of(request), request))

    @app.post("/v1/chat/completions", openapi_extra=_body_schema(ChatCompletionRequest))
    async def create_chat_completion(request: Request) -> Response:
        return await _answer(chat.create_chat_completion(context_of(request), request))


def _add_text_routes(app: FastAPI) -> None:
    @app.post("/tokenize", openapi_extra=_body_schema(TokenizeRequest))
    async def tokenize_text(request: Request) -> Response:
        return await _answer(tokenize.tokenize(context_of(request), request))

    @app.post("/detokenize", openapi_extra=_body_schema(DetokenizeRequest))
    async def detokenize_ids(request: Request) -> Response:
        return await _answer(tokenize.detokenize(context_of(request), request))


def _add_info_routes(app: FastAPI) -> None:
    @app.get("/v1/models")
    async def list_models(request: Request) -> Response:
        return info.list_models(context_of(request))

    @app.get("/v1/models/{name:path}")
    async def get_model(request: Request, name: str) -> Response:
        return await _answer(info.get_model(context_of(request), name))

    @app.get("/health")
    async def health(request: Request) -> Response:
        return await _answer(info.health(context_of(request)))

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        return info.metrics(context_of(request))

    @app.get("/version")
    async def version() -> Response:
        return info.version()


def _body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Bodies are read by hand, with limits, so the schema has to be declared."""
    schema = model.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def _answer(endpoint: Awaitable[Response]) -> Response:
    """The endpoint's response, or its error as one.

    Not left to the framework's handler for all exceptions: that one also drops the connection.
    """
    try:
        return await endpoint
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    except Exception as error:
        return error_response(error)
