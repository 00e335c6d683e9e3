"""Slow, idle, silent and malformed clients on raw sockets: each is bounded, others are served (case F04)."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from fake_server import ThreadServer, wait_until

from inferx.server.args import ServerArgs

pytestmark = pytest.mark.timeout(60)
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
BODY = b'{"prompt": "x", "max_tokens": 2}'
ARGS = ServerArgs(
    max_body_bytes=400_000,
    header_timeout=0.5,
    body_timeout=0.5,
    keep_alive_timeout=0.6,
    write_timeout=0.5,
    max_connections=6,
    first_output_grace=0.3,
)


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadServer]:
    server = ThreadServer(FakeEngine(), ARGS)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _alive_afterwards(server: ThreadServer) -> Iterator[None]:
    server.engine.reset()
    yield
    server.engine.hold = False
    wait_until(lambda: not server.engine.running and not server.engine.waiting, 5)
    assert httpx.get(f"{server.url}/health", timeout=2).status_code == 200


def connect(server: ThreadServer) -> socket.socket:
    return socket.create_connection(server.sock.getsockname(), timeout=10)


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes; b"" when it just closes."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def read_answer(connection: socket.socket) -> bytes:
    """One whole answer of a connection that stays open."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split()[0])
    while len(body) < length:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def request(body: bytes = BODY, *headers: bytes) -> bytes:
    lines = b"".join(h + b"\r\n" for h in headers)
    return HEAD + lines + b"Content-Length: %d\r\n\r\n" % len(body) + body


def error_of(answer: bytes) -> dict[str, Any]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head
    assert b"connection: close" in head.lower()
    return json.loads(body)["error"]


def trickle(connection: socket.socket, data: bytes, seconds: float = 5.0) -> bytes:
    """Send byte by byte until the server has had enough; what it said."""
    deadline = time.monotonic() + seconds
    with contextlib.suppress(ConnectionError):
        for byte in data * 1000:
            connection.sendall(bytes([byte]))
            connection.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                if first := connection.recv(65536):
                    connection.settimeout(10)
                    return first + read_all(connection)
                return b""
            assert time.monotonic() < deadline, "the server goes on listening"
    return b""


class TestSlowClients:
    def test_headers_byte_by_byte(self, server: ThreadServer) -> None:
        with connect(server) as connection:
            connection.sendall(HEAD)
            answer = trickle(connection, b"X-Slow: a\r\n")
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert error_of(answer)["code"] == "request_timeout"

    def test_headers_of_a_second_request(self, server: ThreadServer) -> None:
        """The deadline is each request's own, also on a connection that was fine so far."""
        with connect(server) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert read_answer(connection).startswith(b"HTTP/1.1 200")
            connection.sendall(HEAD)
            assert trickle(connection, b"X-Slow: a\r\n").startswith(b"HTTP/1.1 408 ")

    def test_blank_lines_for_ever(self, server: ThreadServer) -> None:
        with connect(server) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert read_answer(connection).startswith(b"HTTP/1.1 200")
            trickle(connection, b"\r\n")

    def test_a_client_that_says_nothing(self, server: ThreadServer) -> None:
        with connect(server) as connection:
            assert connection.recv(4096) == b""

    @pytest.mark.parametrize("length", [b"Content-Length: 1000\r\n", b"Transfer-Encoding: chunked\r\n"])
    def test_body_byte_by_byte(self, server: ThreadServer, length: bytes) -> None:
        with connect(server) as connection:
            connection.sendall(HEAD + length + b"\r\n")
            data = b"1\r\nx\r\n" if b"chunked" in length else b"x"
            answer = trickle(connection, data)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert error_of(answer)["code"] == "request_timeout"
        assert server.engine.seen == []

    def test_body_that_never_comes(self, server: ThreadServer) -> None:
        with connect(server) as connection:
            connection.sendall(HEAD + b"Content-Length: 5\r\n\r\n")
            assert read_all(connection).startswith(b"HTTP/1.1 408 ")

    def test_body_that_nobody_reads(self, server: ThreadServer) -> None:
        """An answer that came before the body's end leaves no connection open for ever."""
        with connect(server) as connection:
            connection.sendall(b"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
            assert trickle(connection, b"x").count(b"HTTP/1.1") == 1

    def test_a_steady_body_may_take_its_time(self, server: ThreadServer) -> None:
        body = BODY[:-1] + b', "user": "' + b"u" * 80_000 + b'"}'
        with connect(server) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body))
            started = time.monotonic()
            for i in range(0, len(body), 8192):
                connection.sendall(body[i : i + 8192])
                time.sleep(0.1)
            assert time.monotonic() - started > ARGS.body_timeout
            assert read_answer(connection).startswith(b"HTTP/1.1 200")

    def test_idle_between_requests(self, server: ThreadServer) -> None:
        with connect(server) as connection:
            for _ in range(2):
                connection.sendall(request())
                assert read_answer(connection).startswith(b"HTTP/1.1 200")
                time.sleep(0.2)
            assert read_all(connection) == b""

    def test_a_stream_that_is_not_read(self, server: ThreadServer) -> None:
        """The request ends although its client never closes; what is kept ready for it is bounded."""
        body = {"prompt": "x", "n": 32, "max_tokens": 500, "ignore_eos": True, "logprobs": 20, "stream": True}
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(server.sock.getsockname())
            connection.sendall(request(json.dumps(body).encode()))
            wait_until(lambda: server.engine.running, 5)
            wait_until(lambda: server.engine.aborted, 30)
        assert server.engine.generated < 32 * 500

    def test_a_slow_answer_is_not_the_clients_fault(self, server: ThreadServer) -> None:
        server.engine.step_seconds = 0.5
        response = httpx.post(
            f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": 4}, timeout=20
        )
        assert response.status_code == 200


class TestNumber:
    def test_idle_connections_make_room(self, server: ThreadServer) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(ARGS.max_connections + 4):
                connection = stack.enter_context(connect(server))
                connection.sendall(request())
                assert read_answer(connection).startswith(b"HTTP/1.1 200")

    def test_busy_connections_are_kept_and_others_told(self, server: ThreadServer) -> None:
        server.engine.hold = True
        with contextlib.ExitStack() as stack:
            busy = [stack.enter_context(connect(server)) for _ in range(ARGS.max_connections)]
            for connection in busy:
                connection.sendall(request())
            wait_until(lambda: len(server.engine.waiting) == len(busy))
            late = stack.enter_context(connect(server))
            late.sendall(request())
            answer = read_all(late)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert error_of(answer)["code"] == "too_many_connections"
            assert b"retry-after: 1\r\n" in answer
            server.engine.hold = False
            for connection in busy:
                assert read_answer(connection).startswith(b"HTTP/1.1 200")

    def test_a_flood_of_silent_connections(self, server: ThreadServer) -> None:
        with contextlib.ExitStack() as stack:
            flood = [stack.enter_context(connect(server)) for _ in range(300)]
            assert [read_all(connection) for connection in flood] == [b""] * 300


class TestFraming:
    @pytest.mark.parametrize(
        "headers",
        [
            b"Content-Length: 32\r\nTransfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: chunked\r\nContent-Length: 32\r\n",
            b"Content-Length: 32\r\nContent-Length: 33\r\n",
            b"Content-Length: +32\r\n",
            b"Content-Length: -1\r\n",
            b"Content-Length: 0x20\r\n",
            b"Transfer-Encoding: xchunked\r\n",
            b"Transfer-Encoding: chunked, identity\r\n",
            b"Transfer-Encoding : chunked\r\n",
            b"Content-Length: 32\r\n folded: x\r\nX\0: y\r\n",
        ],
    )
    def test_ambiguous_lengths_are_refused(self, server: ThreadServer, headers: bytes) -> None:
        with connect(server) as connection:
            connection.sendall(HEAD + headers + b"\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = read_all(connection)
        assert answer[:10] in (b"HTTP/1.1 4", b"HTTP/1.1 5")
        assert answer[9:12] in (b"400", b"501")
        assert answer.count(b"HTTP/1.1") == 1  # what followed was not taken for a request
        assert error_of(answer)["message"]
        assert server.engine.seen == []

    def test_chunks_without_a_length_in_http_1_0(self, server: ThreadServer) -> None:
        head = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")
        with connect(server) as connection:
            connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
            assert read_all(connection)[9:12] == b"400"

    @pytest.mark.parametrize(
        "junk",
        [b"\x16\x03\x01\x02\x00\x01\x00", b"GET /health\r\n\r\n", b"GET  / HTTP/1.1\r\n\r\n", b"\0\0\0\n"],
    )
    def test_what_is_not_http(self, server: ThreadServer, junk: bytes) -> None:
        with connect(server) as connection:
            connection.sendall(junk)
            answer = read_all(connection)
        assert answer[9:12] in (b"400", b"408", b"")

    def test_http_1_0(self, server: ThreadServer) -> None:
        with connect(server) as connection:
            connection.sendall(request().replace(b"HTTP/1.1", b"HTTP/1.0"))
            answer = read_all(connection)  # the server closes, as that version has it
        assert answer.startswith(b"HTTP/1.1 200")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["usage"]["completion_tokens"] == 2

    def test_http_1_0_stream_ends_with_the_connection(self, server: ThreadServer) -> None:
        body = BODY[:-1] + b', "stream": true}'
        with connect(server) as connection:
            connection.sendall(request(body).replace(b"HTTP/1.1", b"HTTP/1.0"))
            answer = read_all(connection)
        assert b"transfer-encoding" not in answer.lower()
        assert answer.endswith(b"data: [DONE]\n\n")

    def test_pipelined_requests_are_answered_in_order(self, server: ThreadServer) -> None:
        bodies = [b'{"prompt": "x", "max_tokens": %d}' % i for i in (1, 2, 3)]
        last = request(bodies[2], b"Connection: close")
        with connect(server) as connection:
            connection.sendall(request(bodies[0]) + request(bodies[1]) + last)
            answer = read_all(connection)
        found = [json.loads(part.partition(b"\r\n\r\n")[2]) for part in answer.split(b"HTTP/1.1 200")[1:]]
        assert [f["usage"]["completion_tokens"] for f in found] == [1, 2, 3]

    def test_pipelined_behind_a_stream(self, server: ThreadServer) -> None:
        stream = request(BODY[:-1] + b', "stream": true}')
        with connect(server) as connection:
            connection.sendall(stream + request(BODY, b"Connection: close"))
            answer = read_all(connection)
        assert answer.count(b"HTTP/1.1 200") == 2
        assert answer.index(b"[DONE]") < answer.rindex(b"HTTP/1.1 200")

    def test_upgrades_are_not_offered(self, server: ThreadServer) -> None:
        with connect(server) as connection:
            connection.sendall(
                b"GET /health HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: upgrade, close\r\n\r\n"
            )
            assert read_answer(connection).startswith(b"HTTP/1.1 200")

    def test_expect_continue(self, server: ThreadServer) -> None:
        with connect(server) as connection:
            head, _, body = request(BODY, b"Expect: 100-continue").partition(b"\r\n\r\n")
            connection.sendall(head + b"\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 100")
            connection.sendall(body)
            assert read_answer(connection).startswith(b"HTTP/1.1 200")


class TestLargeBodies:
    def test_the_refusal_can_be_read_by_who_is_still_sending(self, server: ThreadServer) -> None:
        body = b'{"prompt": "' + b"x" * 5_000_000 + b'"}'
        headers = {"content-type": "application/json"}
        for _ in range(3):
            response = httpx.post(f"{server.url}/v1/completions", content=body, headers=headers)
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "body_too_large"

    def test_so_can_that_of_a_missing_key(self, make_server: Any) -> None:
        server = make_server(ServerArgs(api_keys=("k",)))
        response = httpx.post(f"{server.url}/v1/completions", content=b"x" * 5_000_000)
        assert response.status_code == 401
