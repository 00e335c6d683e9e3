"""Bounds on what a client may send, counted while reading and never taken from its own word."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from inferx.server.errors import ApiError, shorten


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
        raise ApiError(
            415, f"Content-Type must be application/json, got {shorten(given)}", code="unsupported_media_type"
        )


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"the request body is limited to {max_bytes} bytes", code="body_too_large", close=True
    )


__all__ = ["ClientDisconnect", "check_content_type", "read_body"]
