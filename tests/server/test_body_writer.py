"""The short way of streams to the socket: the same events as the long one, keep-alives, further requests."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from fake_engine import FakeEngine
from fake_server import ThreadServer, sse, wait_until

from inferx.server.args import ServerArgs

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadServer]:
    server = ThreadServer(FakeEngine(), ServerArgs(keep_alive_interval=0.2, first_output_grace=0.1))
    yield server
    server.stop()


def ask(connection: socket.socket, path: str, version: str = "1.1", **body: object) -> None:
    data = json.dumps({"stream": True, "max_tokens": 20, "temperature": 0, **body}).encode()
    head = f"POST {path} HTTP/{version}\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
    connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)


def dechunked(body: bytes) -> tuple[str, bytes]:
    """The content of a complete chunked body, and what follows it."""
    content = b""
    while True:
        size, _, rest = body.partition(b"\r\n")
        count = int(size, 16)
        assert rest[count : count + 2] == b"\r\n"
        if count == 0:
            return content.decode(), rest[2:]
        content += rest[:count]
        body = rest[count + 2 :]


def read_until(connection: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        assert not data or data.startswith(b"HTTP/1.1 200") or b"data:" in data, data
        part = connection.recv(65536)
        assert part, data
        data += part
    return data


def connect(server: ThreadServer) -> socket.socket:
    return socket.create_connection(server.sock.getsockname(), timeout=10)


REQUESTS = [
    ("/v1/completions", {"prompt": "abc \u00fc\u4f60"}),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "echo": True}),
    ("/v1/completions", {"prompt": "x", "logprobs": 1, "return_token_ids": True}),
    ("/v1/completions", {"prompt": "x", "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
]


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_http_1_0_and_1_1_bring_the_same_events(
    server: ThreadServer, path: str, body: dict[str, object]
) -> None:
    """HTTP/1.0 has no chunks and goes the long way."""
    with connect(server) as connection:
        ask(connection, path, **body)
        head, _, raw = read_until(connection, b"\r\n0\r\n\r\n").partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower()
    content, rest = dechunked(raw)
    assert rest == b""
    with connect(server) as connection:
        ask(connection, path, version="1.0", **body)
        old_head, _, old = read_until(connection, b"[DONE]\n\n").partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in old_head.lower()

    def stable(events: str) -> list[object]:
        kept = []
        for event in sse(events):
            for changing in ("id", "created", "metrics"):
                event.pop(changing, None)
            kept.append(event)
        return sorted(kept, key=lambda e: json.dumps([c["index"] for c in e["choices"]]))

    assert stable(content) == stable(old.decode())


def test_a_connection_goes_on_after_a_stream(server: ThreadServer) -> None:
    with connect(server) as connection:
        for _ in range(3):
            ask(connection, "/v1/completions", prompt="x")
            raw = read_until(connection, b"\r\n0\r\n\r\n").partition(b"\r\n\r\n")[2]
            content, rest = dechunked(raw)
            assert rest == b""
            assert len(sse(content)) > 5


def test_quiet_streams_are_kept_alive(server: ThreadServer) -> None:
    """Before the first event and between two."""
    engine = server.engine
    engine.reset()
    engine.hold = True
    with connect(server) as connection:
        ask(connection, "/v1/completions", prompt="x")
        data = b""
        while data.count(b": waiting\n\n") < 3:
            data += connection.recv(65536)
        assert b"data:" not in data
        engine.hold = False
        data += read_until(connection, b"\r\n0\r\n\r\n")
    content, _ = dechunked(data.partition(b"\r\n\r\n")[2])
    assert len(sse(content)) > 5
    assert content.index(": waiting") < content.index("data:")

    engine.step_seconds = 0.5  # longer than the interval
    try:
        with connect(server) as connection:
            ask(connection, "/v1/completions", prompt="x", max_tokens=4)
            raw = read_until(connection, b"\r\n0\r\n\r\n")
    finally:
        engine.reset()
    content, _ = dechunked(raw.partition(b"\r\n\r\n")[2])
    assert ": waiting" in content[content.index("data:") : content.rindex("data:")]
    wait_until(lambda: not engine.running)
