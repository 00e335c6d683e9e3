"""Faults in the server's own process: each ends its request with a clear error, and no other."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio
from live_server import Bystanders, LiveServer

from inferx.engine.output_processor import OutputProcessor
from inferx.server import completions
from inferx.server.args import ServerArgs

pytestmark = pytest.mark.timeout(120)
MARK = "BOOM"  # what the prompts of faulty requests begin with
MARK_IDS = [ord(c) for c in MARK]


class Injected(RuntimeError):
    pass


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(tiny_chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveServer]:
    server = LiveServer(
        tiny_chat_model,
        tmp_path_factory.mktemp("live"),
        server_args=ServerArgs(first_output_grace=5.0, keep_alive_interval=0.2),
    )
    server.bystanders = Bystanders(server.url)
    await server.bystanders.learn()
    yield server
    left = server.stop()
    assert left is not None
    left.pop("preemptions")
    assert set(left.values()) == {0}, left


def ask(path: str = "/v1/completions", **options: Any) -> Callable[[httpx.AsyncClient], Any]:
    async def post(http: httpx.AsyncClient) -> httpx.Response:
        body: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "ignore_eos": True, **options}
        if "chat" in path:
            body["messages"] = [{"role": "user", "content": MARK}]
        else:
            body.setdefault("prompt", MARK)
        return await http.post(path, json=body)

    return post


def is_marked(prompt_token_ids: list[int], live: LiveServer) -> bool:
    return live.engine.tokenizer.decode(prompt_token_ids[:8]).startswith(MARK)


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error, as a status or as the last event but [DONE]."""
    if response.status_code != 200:
        return response.json()["error"]
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return json.loads(events[-2])["error"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.asyncio(loop_scope="module")
class TestOnlyTheGuiltyRequestEnds:
    async def check(self, live: LiveServer, work: Any, status: int, text: str | None) -> None:
        response = await live.bystanders.beside(live.engine, work)
        error = error_of(response)
        assert response.status_code in (status, 200), response.text
        if text is not None:
            assert text in error["message"], error
        live.assert_clean()
        assert httpx.get(f"{live.url}/health").status_code == 200

    async def test_tokenizer(self, live: LiveServer, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        encode = live.engine.tokenizer.encode

        def faulty(text: str, *arguments: Any, **options: Any) -> list[int]:
            if text.startswith(MARK):
                raise Injected("tokenizer")
            return encode(text, *arguments, **options)

        monkeypatch.setattr(live.engine.tokenizer, "encode", faulty)
        await self.check(live, ask(stream=stream), 500, "the server failed to process the request")

    @pytest.mark.parametrize("fault", ["boom", "spin"])
    async def test_template(self, live: LiveServer, stream: bool, fault: str) -> None:
        """A template that trips over its messages, and one that would run for ever."""
        work = ask("/v1/chat/completions", stream=stream, chat_template_kwargs={fault: True})
        await self.check(live, work, 400, "chat template")

    async def test_grammar_check(
        self, live: LiveServer, stream: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def faulty(params: Any) -> None:
            raise Injected("grammar")

        monkeypatch.setattr(live.engine.grammars, "check", faulty)
        work = ask(stream=stream, structured_outputs={"regex": f"[a-z]{{{3 + stream}}}x"})
        await self.check(live, work, 500, "the server failed to process the request")

    @pytest.mark.parametrize("when", [1, 5])
    async def test_output_processing(
        self, live: LiveServer, stream: bool, when: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Detokenising the first or a later output raises: the engine drops the rest."""
        guilty: dict[str, int] = {}
        add, process = OutputProcessor.add_request, OutputProcessor.process

        def faulty_add(self: OutputProcessor, request: Any, **options: Any) -> None:
            if is_marked(request.prompt_token_ids, live):
                guilty[request.request_id] = 0
            add(self, request, **options)

        def faulty_process(self: OutputProcessor, output: Any) -> Any:
            if output.request_id in guilty:
                guilty[output.request_id] += 1
                if guilty[output.request_id] >= when:
                    raise Injected("detokenizer")
            return process(self, output)

        monkeypatch.setattr(OutputProcessor, "add_request", faulty_add)
        monkeypatch.setattr(OutputProcessor, "process", faulty_process)
        await self.check(live, ask(stream=stream, n=2), 500, "Injected: detokenizer")
        assert guilty

    async def test_before_the_engine_is_asked(
        self, live: LiveServer, stream: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add = OutputProcessor.add_request

        def faulty(self: OutputProcessor, request: Any, **options: Any) -> None:
            if is_marked(request.prompt_token_ids, live):
                raise Injected("add_request")
            add(self, request, **options)

        monkeypatch.setattr(OutputProcessor, "add_request", faulty)
        await self.check(live, ask(stream=stream), 500, None)

    async def test_writing_the_answer(
        self, live: LiveServer, stream: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        choice = completions.Completion._choice

        def faulty(self: Any, *arguments: Any) -> Any:
            if is_marked(self.jobs[0].prompt_token_ids, live):
                raise Injected("answer")
            return choice(self, *arguments)

        monkeypatch.setattr(completions.Completion, "_choice", faulty)
        await self.check(live, ask(stream=stream), 500, None)


@pytest.mark.asyncio(loop_scope="module")
async def test_the_process_that_tries_grammars_is_killed(live: LiveServer) -> None:
    """The next grammar gets another one."""

    def tries(number: int) -> httpx.Response:
        body = {"prompt": "x", "structured_outputs": {"regex": f"[0-9]{{{number}}}"}, "max_tokens": 20}
        return httpx.post(f"{live.url}/v1/completions", json=body, timeout=60)

    assert tries(2).status_code == 200
    children = psutil.Process().children()
    trying = [child for child in children if child.pid != live.engine.process_id]
    assert trying
    for child in trying:
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
    response = tries(4)
    assert response.status_code == 200, response.text
    assert len(response.json()["choices"][0]["text"]) == 4
    live.assert_clean()


# ---- the client is gone -----------------------------------------------------------------------


def raw(live: LiveServer, body: dict[str, Any]) -> tuple[socket.socket, bytes]:
    data = json.dumps(body).encode()
    lines = ("POST /v1/completions HTTP/1.1", "Host: x", "Content-Type: application/json")
    head = "\r\n".join((*lines, f"Content-Length: {len(data)}", "", ""))
    return socket.create_connection(live.sock.getsockname()), head.encode() + data


GONE = ("head", "body", "tokenizing", "queued", "prefill", "first token", "streaming", "at the end")


@pytest.mark.parametrize("stage", GONE)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.asyncio(loop_scope="module")
async def test_the_client_leaves(
    live: LiveServer, stage: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every stage of its request; whatever it held is given back, and others do not notice."""
    long = stage in ("queued", "prefill", "streaming")
    prompt = MARK + "x" * (400 if stage == "prefill" else 10)
    body = {"prompt": prompt, "stream": stream, "max_tokens": 90 if long else 3, "ignore_eos": True}
    if stage == "queued":
        body["priority"] = 1000
    if stage == "tokenizing":
        encode = live.engine.tokenizer.encode

        def slow(text: str, *arguments: Any, **options: Any) -> list[int]:
            if text.startswith(MARK):
                import time

                time.sleep(0.3)
            return encode(text, *arguments, **options)

        monkeypatch.setattr(live.engine.tokenizer, "encode", slow)

    async def leave(http: httpx.AsyncClient) -> None:
        connection, request = raw(live, body)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        end = {"head": 40, "body": len(request) - 10}.get(stage, len(request))
        await loop.sock_sendall(connection, request[:end])
        if stage in ("first token", "streaming") and stream:
            await loop.sock_recv(connection, 10)
        if stage == "streaming" and stream:
            for _ in range(5):
                await loop.sock_recv(connection, 200)
        if stage == "at the end":
            await asyncio.sleep(0.2)
        elif stage not in ("head", "body"):
            await asyncio.sleep(0.03)
        connection.close()

    await live.bystanders.beside(live.engine, leave)
    live.assert_clean()
