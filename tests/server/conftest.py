"""A server over the scripted engine (one for the session, in a thread)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fake_engine import FakeEngine
from fake_server import ThreadServer, sse

from inferx.server.args import ServerArgs

FAKE_ARGS = ServerArgs(max_body_bytes=200_000, first_output_grace=0.3, keep_alive_interval=0.1)


@pytest.fixture(scope="session")
def fake_server() -> Iterator[ThreadServer]:
    server = ThreadServer(FakeEngine(), FAKE_ARGS)
    yield server
    server.stop()


@pytest.fixture
def engine(fake_server: ThreadServer) -> Iterator[FakeEngine]:
    fake_server.engine.reset()
    yield fake_server.engine
    fake_server.engine.hold = False


@pytest.fixture(scope="session")
def http_client(fake_server: ThreadServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fake_server.url, timeout=20) as http:
        yield http


@pytest.fixture
def client(http_client: httpx.Client, engine: FakeEngine) -> httpx.Client:
    return http_client


@pytest.fixture
def make_server() -> Iterator[Any]:
    servers: list[ThreadServer] = []

    def make(args: ServerArgs, engine: FakeEngine | None = None) -> ThreadServer:
        servers.append(ThreadServer(engine or FakeEngine(), args))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def complete(client: httpx.Client) -> Any:
    """Post a completion; the response object, or the chunks when streaming."""

    def post(path: str = "/v1/completions", expect: int = 200, **body: Any) -> Any:
        if "prompt" not in body and "messages" not in body:
            if "chat" in path:
                body["messages"] = [{"role": "user", "content": "hi"}]
            else:
                body["prompt"] = "Hello"
        body.setdefault("temperature", 0)
        response = client.post(path, json=body)
        assert response.status_code == expect, response.text
        if expect == 200 and body.get("stream"):
            assert response.headers["content-type"].startswith("text/event-stream")
            return sse(response.text)
        return response.json()

    return post


@pytest.fixture
def chat(complete: Any) -> Any:
    def post(**body: Any) -> Any:
        return complete("/v1/chat/completions", **body)

    return post
