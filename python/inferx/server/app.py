"""The HTTP application: routes to endpoints, nothing else."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from inferx import __version__
from inferx.server import chat, completions, embeddings, info, openapi, tokenize
from inferx.server import response_schemas as schemas
from inferx.server.anthropic.routes import MESSAGES_ROUTES
from inferx.server.args import ServerArgs
from inferx.server.batches import BATCH_ROUTES
from inferx.server.context import ServerContext
from inferx.server.engine_api import AsyncEngine
from inferx.server.errors import handle_error
from inferx.server.guards import Gate
from inferx.server.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from inferx.server.responses_api.routes import RESPONSES_ROUTES
from inferx.server.routes import Route, add_routes

GENERATION_ROUTES = (
    Route(
        "POST",
        "/v1/completions",
        completions.create_completion,
        "Text that goes on from one or several prompts.",
        body=CompletionRequest,
        response=schemas.Completion,
        events=schemas.Completion,
    ),
    Route(
        "POST",
        "/v1/chat/completions",
        chat.create_chat_completion,
        "The next message of a conversation.",
        body=ChatCompletionRequest,
        response=schemas.ChatCompletion,
        events=schemas.ChatCompletionChunk,
    ),
)
EMBEDDING_ROUTES = (
    Route(
        "POST",
        "/v1/embeddings",
        embeddings.create_embeddings,
        "Vectors made of the hidden states of texts.",
        body=embeddings.EmbeddingRequest,
        response=embeddings.EmbeddingResponse,
    ),
)
TEXT_ROUTES = (
    Route(
        "POST",
        "/tokenize",
        tokenize.tokenize,
        "Token ids of a text or a conversation.",
        body=TokenizeChatRequest | TokenizeRequest,
        response=schemas.Tokenized,
        tag="text",
    ),
    Route(
        "POST",
        "/detokenize",
        tokenize.detokenize,
        "Text of token ids.",
        body=DetokenizeRequest,
        response=schemas.Detokenized,
        tag="text",
    ),
)
INFO_ROUTES = (
    Route("GET", "/v1/models", info.list_models, "The names a request may give.", response=schemas.ModelList),
    Route("GET", "/v1/models/{name:path}", info.get_model, "One of these models.", response=schemas.Model),
    Route(
        "GET",
        "/health",
        info.health,
        "200 while the engine makes progress.",
        response=schemas.Health,
        tag="server",
    ),
    Route(
        "GET",
        "/metrics",
        info.metrics,
        "Metrics in Prometheus' text format.",
        response={"type": "string"},
        response_type="text/plain",
        tag="server",
    ),
    Route("GET", "/version", info.version, "Of inferx.", response=schemas.Version, tag="server"),
    Route(
        "GET", "/openapi.json", info.openapi, "This description.", response={"type": "object"}, tag="server"
    ),
)
# What other modules bring along is added here: their tuple of routes.
ROUTES = (
    *GENERATION_ROUTES,
    *EMBEDDING_ROUTES,
    *BATCH_ROUTES,
    *RESPONSES_ROUTES,
    *MESSAGES_ROUTES,
    *TEXT_ROUTES,
    *INFO_ROUTES,
)


def create_app(engine: AsyncEngine, args: ServerArgs | None = None) -> FastAPI:
    """The application over an engine that has been started."""
    args = args or ServerArgs()
    # No interactive documentation: its pages load scripts from elsewhere.
    app = FastAPI(
        title="inferx",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    context = ServerContext(engine, args)
    app.state.context = context
    app.state.routes = []
    add_routes(app, ROUTES)
    app.openapi = lambda: _document(app, args)  # type: ignore[method-assign]
    app.add_exception_handler(HTTPException, handle_error)  # unknown paths and methods
    app.add_middleware(Gate, context=context)
    if args.allowed_origins:
        # Outside of the gate: a browser asks beforehand, without a key, and must be able to read errors.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(args.allowed_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
    return app


def _document(app: FastAPI, args: ServerArgs) -> dict[str, Any]:
    return openapi.document(app.state.routes, with_keys=bool(args.api_keys))
