"""SIGTERM on a real server: what runs is finished, what is new is refused, and the process ends well."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fake_server import sse, wait_until
from real_server import COUNTING, RealServer, streamed_text

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(240)]
LONG = {"prompt": COUNTING, "max_tokens": 120, "ignore_eos": True, "temperature": 0}
ENDLESS = {**LONG, "max_tokens": 7000}


def start(*arguments: str) -> RealServer:
    return RealServer("--max-num-seqs", "4", "--max-num-batched-tokens", "64", *arguments)


def running(server: RealServer, count: int) -> None:
    wait_until(lambda: server.gauge("vllm:num_requests_running") >= count, 20)


def refused(server: RealServer) -> None:
    """New requests get 503 with all that a client needs; so does the probe."""
    for path, body in (("/v1/completions", LONG), ("/v1/chat/completions", {}), ("/v1/models", None)):
        send: Any = httpx.get if body is None else httpx.post
        response = send(f"{server.url}{path}", **({} if body is None else {"json": body}))
        assert response.status_code == 503, response.text
        assert response.json()["error"]["code"] == "draining"
        assert int(response.headers["retry-after"]) > 0
        assert response.headers["connection"] == "close"
    assert httpx.get(f"{server.url}/health").status_code == 503
    assert "vllm:num_requests_running" in httpx.get(f"{server.url}/metrics").text


def test_what_runs_is_finished_and_what_is_new_refused() -> None:
    server = start("--shutdown-timeout", "60")
    wanted = server.complete(**LONG)["choices"][0]["text"]
    kept = httpx.Client(base_url=server.url)  # a connection from before
    assert kept.get("/health").status_code == 200

    def post(stream: bool) -> str:
        response = httpx.post(f"{server.url}/v1/completions", json={**LONG, "stream": stream}, timeout=60)
        assert response.status_code == 200
        return streamed_text(sse(response.text)) if stream else response.json()["choices"][0]["text"]

    with ThreadPoolExecutor(6) as pool:
        # More than run at once: those that wait were accepted, too.
        answers = [pool.submit(post, i % 2 == 0) for i in range(6)]
        running(server, 4)
        wait_until(lambda: server.gauge("vllm:num_requests_waiting") == 2, 20)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
        refused(server)
        assert kept.get("/v1/models").status_code == 503
        assert [answer.result() for answer in answers] == [wanted] * 6
    assert server.process.wait(20) == 0
    assert "Traceback" not in server.log
    assert "to finish" in server.log


def test_what_does_not_finish_gets_an_error_that_can_be_read() -> None:
    server = start("--shutdown-timeout", "1")
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(httpx.post, f"{server.url}/v1/completions", json=ENDLESS, timeout=60)
        with httpx.stream(
            "POST", f"{server.url}/v1/completions", json={**ENDLESS, "stream": True}
        ) as response:
            lines = response.iter_lines()
            first = next(lines)
            running(server, 2)
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            data = [line for line in [first, *lines] if line]
        assert data[-1] == "data: [DONE]"
        error = json.loads(data[-2].removeprefix("data: "))["error"]
        assert error["code"] == "draining"
        answer = whole.result()
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "draining"
    assert server.process.wait(20) == 0
    assert time.monotonic() - started < 15
    assert "Traceback" not in server.log


def test_a_second_signal_drops_what_runs() -> None:
    server = start("--shutdown-timeout", "600")
    with httpx.stream("POST", f"{server.url}/v1/completions", json={**ENDLESS, "stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{server.url}/health").status_code == 503)
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        rest = []
        with contextlib.suppress(httpx.HTTPError):  # cut off, or told before
            for line in lines:
                rest.append(line)
    assert sum(line.startswith("data: ") for line in rest) < ENDLESS["max_tokens"]
    assert not any('"finish_reason":"length"' in line for line in rest)
    assert server.process.wait(20) == 0
    assert time.monotonic() - started < 15


def test_an_idle_server_ends_at_once() -> None:
    server = start()
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))):  # an open connection holds nothing up
        started = time.monotonic()
        assert server.stop() == 0
    assert time.monotonic() - started < 10
