"""What a route is: its endpoint and its description, which the OpenAPI document is made of.

A group of endpoints exports ``ROUTES: tuple[Route, ...]``; ``app.py`` lists the groups.  An endpoint is
``async def endpoint(context, request) -> Response``; whatever it raises becomes an error in OpenAI's shape.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from inferx.server.context import ServerContext, context_of
from inferx.server.errors import error_response

CLIENT_CLOSED_REQUEST = 499  # nginx's; only seen in the access log and in metrics

Endpoint = Callable[[ServerContext, Request], Awaitable[Response]]
# A pydantic model (or a union of them), or a JSON schema as it stands.
Schema = Any


@dataclass(frozen=True)
class Route:
    """One method of one path.

    path: Starlette's form, ``/v1/files/{file_id}``; ``{name:path}`` takes slashes, too.
    body, response: what goes in and out as ``body_type`` and ``response_type``; None for nothing.
    events: one event of the stream that ``stream: true`` asks for.
    parameters: OpenAPI parameter objects beside those in the path.
    errors: statuses beside those that every route may answer (``openapi.COMMON_ERRORS``).
    error: the shape of its errors, if it is not OpenAI's.
    """

    method: str
    path: str
    endpoint: Endpoint
    summary: str
    body: Schema | None = None
    response: Schema | None = None
    events: Schema | None = None
    body_type: str = "application/json"
    response_type: str = "application/json"
    status: int = 200
    parameters: tuple[dict[str, Any], ...] = ()
    errors: tuple[int, ...] = ()
    error: Schema | None = None
    tag: str = field(default="openai")

    @property
    def openapi_path(self) -> str:
        return self.path.replace(":path}", "}")


def query_parameter(
    name: str, schema: dict[str, Any], description: str, required: bool = False
) -> dict[str, Any]:
    """An OpenAPI parameter object."""
    return {"name": name, "in": "query", "required": required, "schema": schema, "description": description}


def add_routes(app: FastAPI, routes: Iterable[Route]) -> None:
    """Register the routes, and remember them for the OpenAPI document.

    All methods of a path are one route to the framework, which then names them all in Allow.
    """
    known: list[Route] = app.state.routes
    paths: dict[str, dict[str, Endpoint]] = {}
    for route in routes:
        known.append(route)
        paths.setdefault(route.path, {})[route.method] = route.endpoint
    for path, endpoints in paths.items():
        answer = _answering(path, endpoints)
        app.router.routes.append(
            StarletteRoute(path, answer, methods=list(endpoints), include_in_schema=False)
        )


def _answering(path: str, endpoints: dict[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
    """The response of the method's endpoint, or its error as one.  ``route_path`` is its label in metrics.

    Not left to the framework's handler for all exceptions: that one also drops the connection.
    """

    async def answer(request: Request) -> Response:
        try:
            # The framework takes HEAD where there is a GET.
            endpoint = endpoints["GET" if request.method == "HEAD" else request.method]
            return await endpoint(context_of(request), request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception as error:
            return error_response(error, context_of(request).admission.retry_after)

    answer.route_path = path  # type: ignore[attr-defined]
    return answer
