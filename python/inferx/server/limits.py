"""Bounds on what a client may send, counted while reading and never taken from its own word."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from inferx.server.errors import ApiError, bad_request, error_response, shorten

# Health and metrics are for probes, which carry no key.
GUARDED_PREFIXES = ("/v1/", "/tokenize", "/detokenize")


class HeaderLimit:
    """ASGI middleware: 431 for too many or too large headers.

    The HTTP parser bounds what it buffers; this bounds what a burst that arrived whole may hold.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, max_headers: int) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.max_headers = max_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = scope["headers"]
            size = sum(len(name) + len(value) for name, value in headers) + len(scope.get("raw_path", b""))
            size += len(scope.get("query_string", b""))
            if len(headers) > self.max_headers or size > self.max_bytes:
                error = ApiError(
                    431,
                    f"request headers are limited to {self.max_headers} lines and {self.max_bytes} bytes, "
                    f"got {len(headers)} lines and {size} bytes",
                    code="headers_too_large",
                    close=True,
                )
                await error_response(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class ApiKeyGuard:
    """ASGI middleware: 401 unless ``Authorization: Bearer KEY`` carries the configured key."""

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self.app = app
        self.expected = f"Bearer {api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(GUARDED_PREFIXES):
            given = Headers(scope=scope).get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, self.expected):
                error = ApiError(401, "missing or wrong API key", code="invalid_api_key", close=True)
                await error_response(error)(scope, receive, send)
                return
        await self.app(scope, receive, send)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body, or 413 as soon as it is known to exceed ``max_bytes``."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        # A compressed body can be a thousand times larger than what was counted.
        raise ApiError(
            415,
            f"content-encoding {shorten(encoding)} is not supported; send the body uncompressed",
            code="unsupported_encoding",
            close=True,
        )
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def check_content_type(request: Request) -> None:
    """Only JSON: a body of another type is a mistake, or a web page posting across origins."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != "application/json" and not (given.startswith("application/") and given.endswith("+json")):
        raise bad_request(f"Content-Type must be application/json, got {shorten(given)}")


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"the request body is limited to {max_bytes} bytes", code="body_too_large", close=True
    )


__all__ = ["ApiKeyGuard", "ClientDisconnect", "HeaderLimit", "check_content_type", "read_body"]
