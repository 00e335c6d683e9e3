"""The OpenAPI document, made of the routes' descriptions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter

from inferx import __version__
from inferx.server.response_schemas import ErrorResponse
from inferx.server.routes import Route

REF = "#/components/schemas/{model}"
STATUS_TEXTS = {
    400: "The request is malformed or asks for something impossible; `param` names the field.",
    401: "No API key, or a wrong one (`invalid_api_key`).",
    404: "No such model, object or path.",
    405: "The path does not take this method; `Allow` names those it takes.",
    408: "The request came in too slowly.",
    409: "The object's state does not allow it.",
    413: "The body is too large.",
    415: "The body is not JSON (or what this path takes), or it is compressed.",
    429: "The waiting queue is full (`queue_full`); `Retry-After` says when to try again.",
    431: "The headers are too large.",
    500: "This request failed in the server; others are not touched.",
    503: "The server is shutting down (`draining`), overloaded, or its engine has ended (`engine_dead`).",
}
COMMON_ERRORS = (400, 401, 405, 408, 431, 503)
BODY_ERRORS = (404, 413, 415, 429, 500)


def document(routes: Sequence[Route], *, with_keys: bool) -> dict[str, Any]:
    """with_keys: whether the server asks for API keys."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.openapi_path, {})[route.method.lower()] = _operation(route, schemas)
    components: dict[str, Any] = {"schemas": schemas}
    result: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "inferx", "version": __version__},
        "paths": paths,
        "components": components,
    }
    if with_keys:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        result["security"] = [{"bearer": []}, {"x-api-key": []}]
    return result


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.response is not None:
        content[route.response_type] = {"schema": _schema(route.response, schemas, "serialization")}
    if route.events is not None:
        # Each event's data; OpenAPI 3.1 has no word for a stream of them.
        event = _schema(route.events, schemas, "serialization")
        content["text/event-stream"] = {"schema": {"type": "string"}, "x-event-schema": event}
    responses: dict[str, Any] = {str(route.status): {"description": "Success.", "content": content}}
    for status in _errors(route):
        responses[str(status)] = _error(status, route.error or ErrorResponse, schemas)
    name = re.sub(r"\W+", "_", f"{route.method.lower()}{route.openapi_path}").strip("_")
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": route.summary,
        "tags": [route.tag],
        "responses": responses,
    }
    parameters = [*_path_parameters(route), *route.parameters]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        schema = _schema(route.body, schemas, "validation")
        operation["requestBody"] = {"required": True, "content": {route.body_type: {"schema": schema}}}
    if route.path == "/health":
        operation["security"] = []
    return operation


def _errors(route: Route) -> list[int]:
    """Every status but success that the route may answer."""
    found = {*COMMON_ERRORS, *route.errors}
    if route.body is not None:
        found.update(BODY_ERRORS)
    if "{" in route.path:
        found.add(404)
    return sorted(found)


def _error(status: int, shape: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": STATUS_TEXTS[status],
        "content": {"application/json": {"schema": _schema(shape, schemas, "serialization")}},
    }
    if status in (429, 503):
        response["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return response


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", route.openapi_path)
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in names
    ]


def _schema(source: Any, schemas: dict[str, Any], mode: Any) -> dict[str, Any]:
    """A JSON schema as it stands, or that of a type; definitions go to the document's components."""
    if isinstance(source, dict):
        return source
    schema = TypeAdapter(source).json_schema(ref_template=REF, mode=mode)
    schemas.update(schema.pop("$defs", {}))
    if isinstance(source, type) and issubclass(source, BaseModel):
        schemas[source.__name__] = schema
        return {"$ref": REF.format(model=source.__name__)}
    return schema
