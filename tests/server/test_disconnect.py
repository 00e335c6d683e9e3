"""A client that leaves stops its work, wherever that is."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from fake_server import ThreadServer, wait_until

from inferx.sampling_params import SamplingParams
from inferx.server.generation import Job, OutputStream
from inferx.server.metrics import ServerMetrics
from inferx.server.streaming import EventStream


def send(server: ThreadServer, path: str = "/v1/completions", **body: Any) -> socket.socket:
    host, port = server.sock.getsockname()
    connection = socket.create_connection((host, port))
    data = json.dumps(body).encode()
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
    )
    connection.sendall("\r\n".join((*lines, "", "")).encode() + data)
    return connection


@pytest.mark.parametrize("prompt", ["Hello", ["Hello", "world", "three"]], ids=["one", "several"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("queued", [True, False])
def test_leaving_aborts(
    fake_server: ThreadServer, engine: FakeEngine, prompt: Any, stream: bool, queued: bool
) -> None:
    engine.step_seconds = 0.01
    engine.hold = queued
    count = len(prompt) if isinstance(prompt, list) else 1
    connection = send(fake_server, prompt=prompt, stream=stream, n=2, max_tokens=400, ignore_eos=True)
    wait_until(lambda: len(engine.waiting if queued else engine.running) == count)
    if stream and not queued:
        assert connection.recv(100)
    connection.close()
    wait_until(lambda: not engine.waiting and not engine.running)
    assert len(engine.aborted) == count
    generated = engine.generated
    answer = httpx.get(f"{fake_server.url}/health")
    assert answer.status_code == 200
    assert engine.generated <= generated + 2 * count


def test_leaving_after_the_grace_period(fake_server: ThreadServer, engine: FakeEngine) -> None:
    engine.hold = True
    connection = send(fake_server, prompt="Hello", stream=True)
    assert connection.recv(100).startswith(b"HTTP/1.1 200")
    connection.close()
    wait_until(lambda: not engine.waiting)
    assert len(engine.aborted) == 1


def test_leaving_in_the_middle_of_the_body(fake_server: ThreadServer, engine: FakeEngine) -> None:
    host, port = fake_server.sock.getsockname()
    connection = socket.create_connection((host, port))
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b'Content-Length: 100\r\n\r\n{"prompt":'
    )
    connection.close()
    assert httpx.get(f"{fake_server.url}/health").status_code == 200
    assert engine.seen == []


def test_aborts_are_counted(fake_server: ThreadServer, engine: FakeEngine, client: httpx.Client) -> None:
    def aborts() -> float:
        for line in client.get("/metrics").text.splitlines():
            if line.startswith("vllm:request_success_total") and 'finished_reason="abort"' in line:
                return float(line.split()[-1])
        return 0.0

    before = aborts()
    engine.step_seconds = 0.01
    connection = send(
        fake_server, path="/v1/chat/completions", messages=[{"role": "user", "content": "x"}], n=3
    )
    wait_until(lambda: engine.running)
    connection.close()
    wait_until(lambda: not engine.running)
    assert aborts() == before + 3


async def test_leaving_between_the_first_token_and_the_first_chunk(engine: FakeEngine) -> None:
    """The response object exists, but nobody has asked it for anything yet."""
    job = Job("r", [65], SamplingParams(max_tokens=400, ignore_eos=True))
    outputs = OutputStream(engine, [job], ServerMetrics(engine, "m"))
    assert await outputs.wait_first(None)

    async def nothing() -> AsyncGenerator[bytes, None]:
        async for _ in outputs:
            yield b""

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await asyncio.sleep(10)

    await EventStream(nothing(), outputs)({"type": "http"}, gone, send)
    assert engine.aborted == ["r"]
    assert engine.running == set()
