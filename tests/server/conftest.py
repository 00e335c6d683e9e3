"""A server over the scripted engine (one for the session, in a thread)."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from fake_engine import FakeEngine

from inferx.server.args import ServerArgs
from inferx.server.serve import Server, _config, bind, url_of

FAKE_ARGS = ServerArgs(max_body_bytes=200_000, first_output_grace=0.3, keep_alive_interval=0.1)


class ThreadServer:
    """uvicorn in a thread, so that tests use sockets like any client."""

    def __init__(self, engine: FakeEngine, args: ServerArgs) -> None:
        self.sock = bind("127.0.0.1", 0)
        self.url = url_of(self.sock)
        self.engine = engine
        started = threading.Event()
        self.server = Server(_config(engine, args), started.set)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert started.wait(20)

    def _run(self) -> None:
        asyncio.run(self.server.serve(sockets=[self.sock]))

    def stop(self) -> None:
        self.server.stop()
        self.thread.join(10)
        self.sock.close()


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


@pytest.fixture
def client(fake_server: ThreadServer, engine: FakeEngine) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=fake_server.url, timeout=20) as http:
        yield http


@pytest.fixture
def make_server() -> Iterator[Any]:
    servers: list[ThreadServer] = []

    def make(args: ServerArgs, engine: FakeEngine | None = None) -> ThreadServer:
        servers.append(ThreadServer(engine or FakeEngine(), args))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


def sse(text: str) -> list[dict[str, Any]]:
    """The events of a complete stream; checks its framing."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    events = [b for b in blocks if not b.startswith(":")]
    assert events.pop() == "data: [DONE]"
    assert all(e.startswith("data: ") and "\n" not in e for e in events)
    return [json.loads(e[len("data: ") :]) for e in events]


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


def wait_until(condition: Any, seconds: float = 3.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)
