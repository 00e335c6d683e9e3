"""The engine process dies or stands still: everybody is told, and so is whoever watches the server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faulty_engine
import httpx
import psutil
import pytest
from fake_server import wait_until
from live_server import Bystanders, LiveServer

from inferx.errors import EngineDeadError

pytestmark = pytest.mark.timeout(60)
LONG = {"prompt": "the harbour", "max_tokens": 450, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def live(tiny_chat_model: Path, tmp_path: Path) -> Iterator[LiveServer]:
    server = LiveServer(tiny_chat_model, tmp_path, stall_seconds=0.5)
    yield server
    if server.thread.is_alive():
        server.stop()


def events_of(text: str) -> list[str]:
    return [line[6:] for line in text.splitlines() if line.startswith("data: ")]


async def ask_and_kill(live: LiveServer, kill: Callable[[httpx.AsyncClient], Any]) -> list[httpx.Response]:
    """Responses of five running requests, whole and streamed, that ``kill`` strikes."""
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        bodies = [{**LONG, "stream": i % 2 == 1, "n": 1 + i % 3} for i in range(5)]
        tasks = [asyncio.create_task(http.post("/v1/completions", json=body)) for body in bodies]
        while live.engine.stats().num_running < 5:
            await asyncio.sleep(0.001)
        await kill(http)
        return list(await asyncio.gather(*tasks))


def assert_dead(live: LiveServer, responses: list[httpx.Response], reason: str) -> None:
    """All that still ran were told, new ones are refused, health says why, and nothing is left."""
    num_told = 0
    for i, response in enumerate(responses):
        if response.status_code == 200 and i % 2 == 0:  # it was complete before
            assert all(choice["finish_reason"] == "length" for choice in response.json()["choices"])
            continue
        if response.status_code == 200:  # streams whose tokens were on the way already
            events = events_of(response.text)
            assert events[-1] == "[DONE]"
            if "error" not in (last := json.loads(events[-2])):
                assert last["choices"][0]["finish_reason"] == "length"
                continue
            error = last["error"]
        else:
            assert response.status_code == 503
            error = response.json()["error"]
        num_told += 1
        assert error["code"] == "engine_dead"
        assert reason in error["message"]
    assert num_told
    health = httpx.get(f"{live.url}/health")
    assert health.status_code == 503
    assert reason in health.json()["error"]["message"]
    for path, body in (("/v1/completions", LONG), ("/v1/chat/completions", {"messages": [MESSAGE]})):
        for stream in (False, True):
            late = httpx.post(f"{live.url}{path}", json={**body, "stream": stream})
            assert (late.status_code, late.json()["error"]["code"]) == (503, "engine_dead")
    assert httpx.get(f"{live.url}/v1/models").status_code == 200
    assert httpx.get(f"{live.url}/metrics").status_code == 200
    # The tasks that watched the engine have ended too.
    wait_until(lambda: set(live.leftovers()) <= {"tasks"} and live.leftovers().get("tasks", 0) <= 0, 5)
    # What makes ``inferx serve`` exit with 1 (test_real_limits.py has the process).
    assert reason in (live.engine.failure or "")


MESSAGE = {"role": "user", "content": "hi"}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_killed_from_outside(live: LiveServer, how: signal.Signals) -> None:
    async def kill(http: httpx.AsyncClient) -> None:
        os.kill(live.engine.process_id, how)

    responses = await ask_and_kill(live, kill)
    assert_dead(live, responses, f"signal {how.value}")
    assert live.stop() is None


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (faulty_engine.EXIT, "exit code 7"),
        (faulty_engine.SEGFAULT, "signal 11"),
        (faulty_engine.SCHEDULER, "exit code 1"),
    ],
    ids=["exit", "segfault", "scheduler"],
)
async def test_dies_of_a_request(live: LiveServer, token: int, reason: str) -> None:
    async def kill(http: httpx.AsyncClient) -> None:
        response = await http.post("/v1/completions", json={**LONG, "prompt": [token, 65]})
        assert response.status_code == 503

    responses = await ask_and_kill(live, kill)
    assert_dead(live, responses, reason)
    assert live.stop() is None


async def test_stands_still_and_goes_on(live: LiveServer) -> None:
    """SIGSTOP: health turns bad, nobody is told a lie, and after SIGCONT the answers are the same."""
    bystanders = Bystanders(live.url)
    await bystanders.learn()

    async def stop(http: httpx.AsyncClient) -> None:
        os.kill(live.engine.process_id, signal.SIGSTOP)
        try:
            await asyncio.sleep(0.8)
            health = await http.get("/health")
            assert health.status_code == 503
            assert "no step finished" in health.json()["error"]["message"]
            # What needs no step goes on.
            assert (await http.post("/tokenize", json={"prompt": "abc"})).json()["count"] >= 3
            assert (await http.get("/metrics")).status_code == 200
        finally:
            os.kill(live.engine.process_id, signal.SIGCONT)

    await bystanders.beside(live.engine, stop)
    assert httpx.get(f"{live.url}/health").status_code == 200
    live.assert_clean()


async def test_clients_leave_while_it_stands_still(live: LiveServer) -> None:
    os.kill(live.engine.process_id, signal.SIGSTOP)
    async with httpx.AsyncClient(base_url=live.url) as http:
        for stream in (False, True):
            with pytest.raises(httpx.ReadTimeout):
                await http.post("/v1/completions", json={**LONG, "stream": stream}, timeout=0.3)
    wait_until(lambda: not live.engine._queues, 3)
    os.kill(live.engine.process_id, signal.SIGCONT)
    live.assert_clean()


async def test_a_hanging_step_is_ended_at_shutdown(live: LiveServer) -> None:
    """The process does not hear Shutdown: it is killed, and who waits is told."""
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        body = {**LONG, "prompt": [faulty_engine.HANG, 65]}
        task = asyncio.create_task(http.post("/v1/completions", json=body))
        while not live.engine._queues:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.7)
        assert (await http.get("/health")).status_code == 503
        process = psutil.Process(live.engine.process_id)
        shutdown = asyncio.run_coroutine_threadsafe(live.engine.shutdown(timeout=0.5), live.loop)
        response = await task
        assert (response.status_code, response.json()["error"]["code"]) == (503, "draining")
        await asyncio.wrap_future(shutdown)
    assert not process.is_running()


async def test_a_message_that_cannot_be_read(live: LiveServer) -> None:
    """The receiver gives up: what the engine says can no longer be trusted."""

    async def spoil(http: httpx.AsyncClient) -> None:
        response = await http.post("/v1/completions", json={**LONG, "prompt": [faulty_engine.GARBAGE, 65]})
        assert response.status_code == 503

    responses = await ask_and_kill(live, spoil)
    assert_dead(live, responses, "the engine's receiver failed")


async def test_the_receiver_fails(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(step: Any) -> None:
        raise ZeroDivisionError("injected")

    async def spoil(http: httpx.AsyncClient) -> None:
        monkeypatch.setattr(live.engine, "_deliver", broken)

    responses = await ask_and_kill(live, spoil)
    assert_dead(live, responses, "ZeroDivisionError: injected")
    with pytest.raises(EngineDeadError):
        live.in_loop(live.engine._check_alive)
