"""One request of a batch, answered by the endpoints' own functions: the same checks, limits and errors."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Scope

from inferx.errors import InferxError
from inferx.server import chat, completions, embeddings
from inferx.server.context import ServerContext
from inferx.server.errors import as_api_error, bad_request, error_response
from inferx.server.responses_api import endpoints as responses
from inferx.server.routes import Endpoint

ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": chat.create_chat_completion,
    "/v1/completions": completions.create_completion,
    "/v1/embeddings": embeddings.create_embeddings,
    "/v1/responses": responses.create_response,
}
URLS = tuple(ENDPOINTS)
# When the waiting queue is full; interactive requests come first there, too.
_RETRY_SECONDS = (0.05, 2.0)


class EngineGoneError(InferxError):
    """The engine has ended or is about to: the request was not answered, and can be later."""


class _Options(msgspec.Struct):
    stream: Any = None
    background: Any = None


_options = msgspec.json.Decoder(_Options)


async def answer(context: ServerContext, url: str, body: bytes) -> tuple[int, bytes]:
    """Status and body of the response.  EngineGoneError when there is nobody to answer."""
    pause, longest = _RETRY_SECONDS
    while True:
        status, code, data = await _answer_once(context, url, body)
        if status == 503:
            raise EngineGoneError(f"the engine has ended ({code})")
        if status != 429:
            return status, data
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)


async def _answer_once(context: ServerContext, url: str, body: bytes) -> tuple[int, str | None, bytes]:
    try:
        body = _checked(url, body)
        response = await ENDPOINTS[url](context, _request(url, body))
    except ClientDisconnect:
        raise  # nobody here disconnects
    except Exception as error:
        api_error = as_api_error(error)
        return api_error.status, api_error.code, bytes(error_response(api_error).body)
    return response.status_code, None, bytes(response.body)


def _checked(url: str, body: bytes) -> bytes:
    """The body, without what only makes sense over a connection."""
    try:
        options = _options.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return body  # the endpoint says what is wrong
    if options.stream:
        raise bad_request("stream must be false in a batch", "stream")
    if options.background:
        raise bad_request("background must be false in a batch", "background")
    if url == "/v1/responses":
        # What is stored would push out what interactive clients have stored, and nobody knows its id.
        fields = msgspec.json.decode(body)
        return msgspec.json.encode({**fields, "store": False})
    return body


def _request(url: str, body: bytes) -> Request:
    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": url,
        "raw_path": url.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
        "client": None,
        "server": None,
    }
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # the client stays until it is cancelled
        raise AssertionError

    return Request(scope, receive)
