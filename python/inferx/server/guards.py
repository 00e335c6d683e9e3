"""What every request passes before its endpoint: bounds on headers, keys, and the state of the server."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferx.server import limits_table as limits
from inferx.server.context import ServerContext
from inferx.server.errors import ERROR_CODE, ApiError, error_response

# For probes, which carry no key.
OPEN_PATHS = frozenset(("/health",))
# Answered while the server shuts down: looking at it is no work for the engine.
WATCHING_PATHS = frozenset(("/metrics", "/version"))


class Gate:
    """ASGI middleware; also counts what was answered, for metrics and for shutting down."""

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self.app = app
        self.context = context
        self.max_header_bytes = context.args.max_header_bytes
        self.keys = ApiKeys(context.args.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = 0

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        refusal = self._refusal(scope)
        lifecycle = self.context.lifecycle
        watching = scope["path"] in OPEN_PATHS or scope["path"] in WATCHING_PATHS
        if not watching:
            lifecycle.enter()
        try:
            if refusal is None:
                await self.app(scope, receive, observed)
            else:
                await error_response(refusal)(scope, receive, observed)
        finally:
            if not watching:
                lifecycle.leave()
            endpoint = getattr(scope.get("endpoint"), "route_path", "other")
            self.context.metrics.observe_response(endpoint, status, scope.get(ERROR_CODE))

    def _refusal(self, scope: Scope) -> ApiError | None:
        path = scope["path"]
        refusal = self._check_headers(scope)
        if refusal is None and path not in OPEN_PATHS and not self.keys.admit(scope["headers"]):
            refusal = ApiError(
                401,
                "missing or wrong API key",
                type="authentication_error",
                code="invalid_api_key",
                close=True,
            )
        if refusal is None and path not in WATCHING_PATHS:
            refusal = self.context.lifecycle.refusal()
        return refusal

    def _check_headers(self, scope: Scope) -> ApiError | None:
        """The HTTP parser bounds what it buffers; this bounds what a burst that arrived whole may hold."""
        headers = scope["headers"]
        size = sum(len(name) + len(value) for name, value in headers) + len(scope.get("raw_path", b""))
        size += len(scope.get("query_string", b""))
        most = limits.HEADER_LINES.most
        if len(headers) > most or size > self.max_header_bytes:
            return ApiError(
                431,
                f"request headers are limited to {most} lines and {self.max_header_bytes} bytes, "
                f"got {len(headers)} lines and {size} bytes",
                code="headers_too_large",
                close=True,
            )
        names = {name for name, _ in headers}
        if b"transfer-encoding" in names and (b"content-length" in names or scope["http_version"] == "1.0"):
            # Whoever stands between may take the other of the two for the body's end.
            return ApiError(
                400,
                "Transfer-Encoding must not come with Content-Length or with HTTP/1.0",
                code="ambiguous_length",
                close=True,
            )
        return None


class ApiKeys:
    """The keys that requests may carry; without any, all are admitted."""

    def __init__(self, keys: Iterable[str]) -> None:
        # Digests are of one length, so that comparing tells nothing of a key's.
        self._digests = [sha256(key.encode()).digest() for key in keys]

    def admit(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether ``Authorization: Bearer KEY`` or ``x-api-key: KEY`` carries one of the keys; the time does
        not depend on which, or on how much of it is right."""
        if not self._digests:
            return True
        admitted = False
        for name, value in headers:
            if name == b"authorization":
                scheme, _, given = value.partition(b" ")
                if scheme.lower() != b"bearer":
                    continue
            elif name == b"x-api-key":
                given = value
            else:
                continue
            digest = sha256(given.strip()).digest()
            for known in self._digests:
                admitted |= hmac.compare_digest(digest, known)
        return admitted
