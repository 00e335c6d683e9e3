"""Faults inside the engine process: the request at fault ends, others go on with the same answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import faulty_engine
import httpx
import pytest
import pytest_asyncio
from live_server import Bystanders, LiveServer

pytestmark = pytest.mark.timeout(120)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tiny_chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    server = LiveServer(tiny_chat_model, tmp_path_factory.mktemp("live"))
    server.bystanders = Bystanders(server.url)
    await server.bystanders.learn()
    yield server
    left = server.stop()
    assert left is not None
    preemptions = left.pop("preemptions")
    assert set(left.values()) == {0}, left
    assert preemptions > 0, "the pool was not small enough to matter"


def faulty(token: int, **options: Any) -> Callable[[httpx.AsyncClient], Any]:
    async def ask(http: httpx.AsyncClient) -> httpx.Response:
        body = {"prompt": [token, 65, 66], "max_tokens": 8, "temperature": 0, "ignore_eos": True, **options}
        return await http.post("/v1/completions", json=body)

    return ask


# By name: where the fault is, and what the client is told of it.
FAULTS = {
    "forward": (faulty_engine.FORWARD, "Injected: forward"),
    "sampler": (faulty_engine.SAMPLER, "Injected: sampler"),
    "results": (faulty_engine.RESULTS, "Injected: results"),
    "memory": (faulty_engine.MEMORY, "MemoryError"),
    "admission": (faulty_engine.ADMISSION, "Injected: admission"),
}


@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.asyncio(loop_scope="module")
async def test_only_the_guilty_request_ends(live: LiveServer, fault: str, stream: bool, n: int) -> None:
    token, message = FAULTS[fault]
    response = await live.bystanders.beside(live.engine, faulty(token, stream=stream, n=n))
    # Nothing has been sent yet, so a stream's error is a status too.
    assert response.status_code == 500
    error = response.json()["error"]
    assert message in error["message"]
    assert (error["type"], error["code"]) == ("internal_server_error", "request_failed")
    live.assert_clean()
    assert httpx.get(f"{live.url}/health").status_code == 200


@pytest.mark.asyncio(loop_scope="module")
async def test_a_stream_that_fails_in_the_middle(live: LiveServer) -> None:
    response = await live.bystanders.beside(live.engine, faulty(faulty_engine.FORWARD_LATER, stream=True))
    assert response.status_code == 200
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert '"text"' in events[0], "tokens came before the fault"
    assert "Injected: forward of a later token" in events[-2]
    assert '"error"' in events[-2]
    live.assert_clean()


@pytest.mark.asyncio(loop_scope="module")
async def test_one_prompt_of_several_fails(live: LiveServer) -> None:
    """The answer is one, so it fails as a whole; the other prompts' work is dropped."""

    async def ask(http: httpx.AsyncClient) -> httpx.Response:
        prompts = [[65, 66], [faulty_engine.FORWARD, 65], [67, 68, 69]]
        body = {"prompt": prompts, "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        return await http.post("/v1/completions", json=body)

    response = await live.bystanders.beside(live.engine, ask)
    assert response.status_code == 500
    live.assert_clean()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_same_prompt_prefix_is_not_poisoned(live: LiveServer) -> None:
    """Blocks of a failed prompt are not reused: their content was never computed."""
    tail = list(range(65, 65 + 26)) * 3
    body = {"prompt": tail, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=live.url, timeout=60) as http:
        salted = (await http.post("/v1/completions", json={**body, "cache_salt": "other"})).json()
        for token in (faulty_engine.FORWARD, faulty_engine.RESULTS):
            failed = await http.post("/v1/completions", json={**body, "prompt": [token, *tail]})
            assert failed.status_code == 500
        assert (await http.post("/v1/completions", json=body)).json()["choices"] == salted["choices"]
    live.assert_clean()


@pytest.mark.parametrize(
    ("where", "status", "message"),
    [("COMPILE", None, "injected: compiling"), ("MASK", 500, "Injected: matcher"), ("TAKE", 500, "Injected")],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.asyncio(loop_scope="module")
async def test_grammars(live: LiveServer, where: str, status: int | None, message: str, stream: bool) -> None:
    """A grammar that the front end found good fails in the engine: so does its request, and no other."""
    constraint = {"regex": f"({where}|[a-z]+)"}
    body = {"prompt": "x", "structured_outputs": constraint, "stream": stream, "max_tokens": 8}

    async def ask(http: httpx.AsyncClient) -> httpx.Response:
        return await http.post("/v1/completions", json=body)

    response = await live.bystanders.beside(live.engine, ask)
    assert response.status_code in ((400, 500) if status is None else (status,))
    assert message in response.json()["error"]["message"]
    live.assert_clean()
    good = httpx.post(
        f"{live.url}/v1/completions", json={**body, "structured_outputs": {"regex": "[a-z]{3}"}}
    )
    assert good.status_code == 200
