"""Bounds on headers and bodies, counted while reading."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from fake_engine import FakeEngine
from fake_server import ThreadServer

from inferx.server.args import ServerArgs

LIMIT = 200_000  # of the session's server
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def connect(server: ThreadServer) -> socket.socket:
    return socket.create_connection(server.sock.getsockname(), timeout=10)


def reply(connection: socket.socket) -> bytes:
    """What the server says until it closes; b"" when it just closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def flood(connection: socket.socket, data: bytes, most: int) -> int:
    """Send until the server refuses; bytes sent."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(data)
            sent += len(data)
    except ConnectionError:
        pass
    return sent


@pytest.fixture(autouse=True)
def _alive_afterwards(client: httpx.Client) -> Iterator[None]:
    yield
    assert client.get("/health", timeout=1).status_code == 200


def test_declared_length_is_refused_without_reading(fake_server: ThreadServer, engine: FakeEngine) -> None:
    with connect(fake_server) as connection:
        started = time.monotonic()
        connection.sendall(HEAD + b"Content-Length: 1000000000000\r\n\r\n")
        assert reply(connection).startswith(b"HTTP/1.1 413")
        assert time.monotonic() - started < 2


def test_chunked_body_without_end(fake_server: ThreadServer, engine: FakeEngine) -> None:
    with connect(fake_server) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        sent = flood(connection, chunk, 200 << 20)
        assert sent < 50 << 20  # the connection was closed, what was under way aside
        assert reply(connection)[:12] in (b"HTTP/1.1 413", b"")


def test_body_at_the_limit(client: httpx.Client) -> None:
    def post(size: int) -> int:
        body = b'{"prompt": [5], "user": "' + b"x" * (size - 27) + b'"}'
        assert len(body) == size
        return client.post(
            "/v1/completions", content=body, headers={"content-type": "application/json"}
        ).status_code

    assert post(LIMIT) == 200
    assert post(LIMIT + 1) == 413


@pytest.mark.parametrize("encoding", ["gzip", "deflate, gzip"])
def test_compressed_body(client: httpx.Client, encoding: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    response = client.post("/v1/completions", content=b"\x1f\x8b" + b"x" * 50, headers=headers)
    assert response.status_code == 415
    assert response.json()["error"]["message"]


def test_large_header(fake_server: ThreadServer, engine: FakeEngine) -> None:
    with connect(fake_server) as connection:
        connection.sendall(HEAD + b"X-Large: ")
        sent = flood(connection, b"x" * 65536, 16 << 20)
        assert sent < 16 << 20 or reply(connection)[:10] in (b"HTTP/1.1 4", b"")


def test_many_headers(fake_server: ThreadServer, engine: FakeEngine) -> None:
    with connect(fake_server) as connection:
        connection.sendall(HEAD)
        flood(connection, b"".join(b"X-%d: y\r\n" % i for i in range(1000)), 1 << 20)
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"\r\n")
        assert reply(connection)[:10] in (b"HTTP/1.1 4", b"")


def test_more_headers_than_allowed_but_small(client: httpx.Client) -> None:
    response = client.get("/health", headers={f"x-{i}": "y" for i in range(200)})
    assert response.status_code == 431
    assert "128" in response.json()["error"]["message"]


def test_api_key(make_server: object, engine: FakeEngine) -> None:
    url = make_server(ServerArgs(api_keys=("other", "secret ключ"))).url  # type: ignore[operator]
    body = {"prompt": "x"}
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
        response = httpx.post(f"{url}/v1/completions", json=body, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 401
        assert httpx.post(f"{url}/tokenize", json=body, headers=headers).status_code == 401
    good = {b"authorization": "Bearer secret ключ".encode()}
    assert httpx.post(f"{url}/v1/completions", json=body, headers=good).status_code == 200
    assert httpx.get(f"{url}/health").status_code == 200
    assert httpx.get(f"{url}/metrics").status_code == 401
