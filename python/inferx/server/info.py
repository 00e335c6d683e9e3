"""Endpoints about the server itself: models, health, metrics, version."""

from __future__ import annotations

from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from inferx import __version__
from inferx.server.context import ServerContext
from inferx.server.errors import ApiError
from inferx.server.responses import json_response


async def list_models(context: ServerContext, request: Request) -> Response:
    return json_response({"object": "list", "data": [_model(context, name) for name in context.model_names]})


async def get_model(context: ServerContext, request: Request) -> Response:
    return json_response(_model(context, context.check_model(request.path_params["name"])))


def _model(context: ServerContext, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": context.started,
        "owned_by": "inferx",
        "root": context.engine.model_name,
        "parent": None,
        "max_model_len": context.engine.max_model_len,
    }


async def health(context: ServerContext, request: Request) -> Response:
    """200 while the engine makes progress, 503 with the reason otherwise."""
    healthy, reason = context.engine.is_healthy()
    if not healthy:
        raise ApiError(503, reason, type="service_unavailable_error", code="unhealthy")
    return json_response({"status": "ok"})


async def metrics(context: ServerContext, request: Request) -> Response:
    return Response(context.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def version(context: ServerContext, request: Request) -> Response:
    return json_response({"version": __version__})


async def openapi(context: ServerContext, request: Request) -> Response:
    return json_response(request.app.openapi())
