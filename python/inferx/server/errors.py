"""Errors over HTTP, in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``.

``docs/errors.md`` lists the codes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inferx.engine.scheduler import QueueFullError
from inferx.errors import (
    ContradictionError,
    EngineDeadError,
    EngineShutDownError,
    InvalidRequestError,
    RequestFailedError,
)

logger = logging.getLogger("inferx.server")

# Where a response leaves its error's code for the metrics, in the request's scope.
ERROR_CODE = "inferx.error_code"
# Paths whose clients read errors of another shape than OpenAI's: their prefix -> an error's body.
SHAPES: dict[str, Callable[[ApiError], dict[str, Any]]] = {}
# When nothing is known about how long the queue takes.
RETRY_SECONDS = 2


class ApiError(Exception):
    """An answer other than success.  ``param`` names the request's field, ``code`` is for programs.
    ``close``: the rest of the request is unread, so the connection cannot be used again.
    ``retry_after``: seconds, for Retry-After.  ``headers``: further ones."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        close: bool = False,
        retry_after: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.close = close
        self.retry_after = retry_after
        self.headers = headers

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": printable(self.message),
                "type": self.type,
                "param": None if self.param is None else printable(self.param),
                "code": self.code,
            }
        }


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param=param, code=code)


def printable(text: str) -> str:
    """The text as it can be encoded: a caller's lone surrogates must not break the error that quotes them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def shorten(value: object, limit: int = 64) -> str:
    """A caller's value for use in a message: quoted, escaped, and short whatever its size."""
    if isinstance(value, str):
        return repr(value) if len(value) <= limit else f"{value[:limit]!r}... ({len(value)} characters)"
    if isinstance(value, (list, tuple, dict)):
        return f"{type(value).__name__} of {len(value)} entries" if len(value) else repr(value)
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


def as_api_error(error: BaseException) -> ApiError:
    """What the client is told about an exception; anything unforeseen is logged and becomes a 500."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, InvalidRequestError):
        return bad_request(str(error), error.param)
    if isinstance(error, QueueFullError):
        return ApiError(
            429, str(error), type="rate_limit_error", code="queue_full", retry_after=RETRY_SECONDS
        )
    if isinstance(error, EngineShutDownError):
        return ApiError(503, str(error), type="service_unavailable_error", code="draining", close=True)
    if isinstance(error, EngineDeadError):
        return ApiError(503, str(error), type="service_unavailable_error", code="engine_dead")
    if isinstance(error, ContradictionError):
        return bad_request(str(error), code="no_token_left")
    if isinstance(error, RequestFailedError):
        return ApiError(500, str(error), type="internal_server_error", code="request_failed")
    if isinstance(error, HTTPException):
        return _routing_error(error)
    logger.error("unexpected error while serving a request", exc_info=error)
    return ApiError(500, "the server failed to process the request", type="internal_server_error")


def _routing_error(error: HTTPException) -> ApiError:
    if error.status_code == 404:
        return ApiError(404, "no such endpoint", code="not_found")
    if error.status_code == 405:
        headers = dict(error.headers or {})  # Allow
        message = "this endpoint does not take that method"
        return ApiError(405, message, code="method_not_allowed", headers=headers)
    return ApiError(error.status_code, str(error.detail))


class ErrorAnswer(Response):
    """An error as a response, in the shape that belongs to the path; leaves its code in the request's
    scope, where the metrics look for it."""

    def __init__(self, error: ApiError) -> None:
        headers = dict(error.headers or {})
        if error.close:
            headers["connection"] = "close"
        if error.retry_after is not None:
            headers["retry-after"] = str(error.retry_after)
        if error.status == 401:
            headers["www-authenticate"] = "Bearer"
        super().__init__(msgspec.json.encode(error.body()), error.status, headers, "application/json")
        self.error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[ERROR_CODE] = self.error.code or self.error.type
        for prefix, shape in SHAPES.items():
            if scope["path"].startswith(prefix):
                self.body = msgspec.json.encode(shape(self.error))
                self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def error_response(error: BaseException, queue_seconds: Callable[[], int] | None = None) -> Response:
    """queue_seconds: an estimate of when a full queue will take requests again."""
    api_error = as_api_error(error)
    if api_error.code == "queue_full" and queue_seconds is not None:
        api_error.retry_after = queue_seconds()
    return ErrorAnswer(api_error)


async def handle_error(request: Request, error: Exception) -> Response:
    """Exception handler of the application."""
    return error_response(error)
