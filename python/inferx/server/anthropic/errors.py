"""Errors in Anthropic's shape: ``{"type": "error", "error": {"type", "message"}}``."""

from __future__ import annotations

from typing import Any

from inferx.server.errors import SHAPES, ApiError, as_api_error, printable

PATHS = "/v1/messages"

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """``param`` and ``code`` are what OpenAI's shape has beyond Anthropic's."""
    kind = ERROR_TYPES.get(error.status)
    if kind is None:
        kind = "invalid_request_error" if error.status < 500 else "api_error"
    detail: dict[str, Any] = {"type": kind, "message": printable(error.message)}
    if error.param is not None:
        detail["param"] = printable(error.param)
    if error.code is not None:
        detail["code"] = error.code
    return {"type": "error", "error": detail}


def error_event(error: BaseException) -> dict[str, Any]:
    """The last event of a stream that failed."""
    return error_body(as_api_error(error))


SHAPES[PATHS] = error_body  # also for what is refused before an endpoint is reached: keys, headers, methods
