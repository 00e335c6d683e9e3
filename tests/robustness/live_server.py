"""The HTTP server and the real AsyncEngine in a thread of the test, over a real engine process with faults.

What users run differs in one thing only: the command of the engine process, which is ``faulty_engine.py``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from fake_server import sse, wait_until
from tests.engine.core_harness import save_tiny_llama

from inferx.engine import async_engine
from inferx.engine.args import EngineArgs
from inferx.server.args import ServerArgs
from inferx.server.serve import Server, _config, bind, url_of

FAULTY_ENGINE = Path(__file__).with_name("faulty_engine.py")
# 8 of the bystanders' tokens fit in a block, and not all of them into the pool: they are preempted.
ENGINE = {
    "num_blocks": 96,
    "block_size": 8,
    "max_num_seqs": 16,
    "num_threads": 1,
    "seed": 0,
    "max_model_len": 512,
}
TEMPLATE = (
    "{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}"
    "{% if boom %}{{ messages[0].nothing.at.all }}{% endif %}"
    "{% if spin %}{% for i in range(10000000) %}{% for j in range(10000000) %}{% endfor %}{% endfor %}"
    "{% endif %}"
)


def save_model(directory: Path) -> Path:
    """Two layers with random weights, a byte-level tokenizer, and a chat template."""
    save_tiny_llama(directory)
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE})
    )
    return directory


class LiveServer:
    """Starts at once.  ``stop`` shuts everything down and returns what the engine core still held (None
    when the process did not end in order)."""

    def __init__(
        self,
        model: Path,
        directory: Path,
        *,
        stall_seconds: float = 60.0,
        server_args: ServerArgs | None = None,
        **engine_options: Any,
    ) -> None:
        self.report = directory / "left.json"
        self.sock = bind("127.0.0.1", 0)
        self.url = url_of(self.sock)
        args = EngineArgs(model=str(model), served_model_name="tiny", **{**ENGINE, **engine_options})
        self.engine = async_engine.AsyncEngine(args, stall_seconds=stall_seconds)
        self._server_args = server_args or ServerArgs(first_output_grace=5.0, keep_alive_interval=0.2)
        self._started = threading.Event()
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        assert self._started.wait(60)
        if self._error is not None:
            raise self._error
        self.quiet_tasks = self.num_tasks()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
            self._started.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        start_process = asyncio.create_subprocess_exec

        async def start_faulty(program: str, *arguments: str, **options: Any) -> Any:
            assert arguments == ("-m", "inferx.engine.process"), arguments
            return await start_process(program, str(FAULTY_ENGINE), str(self.report), **options)

        asyncio.create_subprocess_exec = start_faulty  # type: ignore[assignment]
        try:
            await self.engine.start()
        finally:
            asyncio.create_subprocess_exec = start_process
        self.server = Server(_config(self.engine, self._server_args), self._started.set)
        try:
            await self.server.serve(sockets=[self.sock])
        finally:
            await self.engine.shutdown()

    def stop(self) -> dict[str, int] | None:
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.server.stop)
            self.thread.join(30)
        assert not self.thread.is_alive()
        self.sock.close()
        return json.loads(self.report.read_text()) if self.report.exists() else None

    # ---- what must be as it was

    def in_loop(self, function: Callable[[], Any]) -> Any:
        """The result of ``function`` called in the server's loop."""

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(10)

    def num_tasks(self) -> int:
        return self.in_loop(lambda: len(asyncio.all_tasks()))

    def leftovers(self) -> dict[str, int]:
        """What requests have left behind; empty when nothing has been lost."""
        stats = self.engine.stats()
        found = {
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "blocks": stats.num_blocks - stats.num_free_blocks,
            "queues": len(self.engine._queues),
            "outputs": self.engine.outputs.num_requests,
            "tasks": self.num_tasks() - self.quiet_tasks,
        }
        return {name: count for name, count in found.items() if count}

    def assert_clean(self) -> None:
        try:
            wait_until(lambda: not self.leftovers(), 5)
        except AssertionError:
            raise AssertionError(f"left behind: {self.leftovers()}") from None


async def post(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    """The answer to a request that must succeed; the list of events when streamed."""
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return sse(response.text) if body.get("stream") else response.json()


class Bystanders:
    """Requests beside the faulty one.  ``alone``: their answers when nobody else was there."""

    BODIES = (
        {"prompt": "the harbour", "max_tokens": 300, "temperature": 0, "ignore_eos": True},
        {"prompt": "the island", "max_tokens": 250, "temperature": 1, "seed": 7, "n": 2, "ignore_eos": True},
        {"prompt": "the lantern " * 8, "max_tokens": 200, "temperature": 0.8, "seed": 1, "logprobs": 2},
        {"prompt": "the captain", "max_tokens": 300, "temperature": 0, "stream": True, "ignore_eos": True},
        {"prompt": "the storm " * 12, "max_tokens": 200, "temperature": 0, "stop": ["zzzz"], "stream": True},
    )

    def __init__(self, url: str) -> None:
        self.url = url

    async def learn(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as http:
            self.alone = [shown(await post(http, "/v1/completions", **body)) for body in self.BODIES]

    async def beside(self, engine: Any, work: Callable[[httpx.AsyncClient], Any]) -> Any:
        """Runs ``work`` while they run, again and again; checks that their answers are those of before."""
        over = asyncio.Event()

        async def stand_by(http: httpx.AsyncClient, body: dict[str, Any], alone: Any) -> None:
            while True:
                assert shown(await post(http, "/v1/completions", **body)) == alone
                if over.is_set():
                    return

        async with httpx.AsyncClient(base_url=self.url, timeout=60) as http:
            tasks = [
                asyncio.create_task(stand_by(http, body, alone))
                for body, alone in zip(self.BODIES, self.alone, strict=True)
            ]
            try:
                while engine.stats().num_running < 3:
                    await asyncio.sleep(0.001)
                result = await work(http)
            finally:
                over.set()
                await asyncio.gather(*tasks)
        return result


def shown(answer: Any) -> Any:
    """What must not depend on others: texts, log-probabilities, reasons, usage.  How many tokens an event of
    a stream brings may."""
    events = answer if isinstance(answer, list) else [answer]
    choices: dict[int, dict[str, Any]] = {}
    for choice in (c for event in events for c in event["choices"]):
        whole = choices.setdefault(choice["index"], {"text": "", "logprobs": [], "end": None})
        whole["text"] += choice["text"]
        if choice["logprobs"] is not None:
            whole["logprobs"] += zip(*(choice["logprobs"][k] for k in LOGPROBS), strict=True)
        whole["end"] = choice["finish_reason"]
    return choices


LOGPROBS = ("tokens", "token_logprobs", "text_offset")


__all__ = ["Bystanders", "LiveServer", "post", "save_model", "sys"]
