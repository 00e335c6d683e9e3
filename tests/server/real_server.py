"""``inferx serve`` as a process, with the real default model."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
from fake_server import sse

COUNTING = "Count: 1 2 3 4 5 6"


class RealServer:
    """Starts on a free port and waits until it serves; ``stop`` sends SIGTERM and returns the exit code."""

    def __init__(
        self,
        *arguments: str,
        timeout: float = 120,
        program: tuple[str, ...] = ("-m", "inferx.cli.main"),
        env: dict[str, str] | None = None,
    ) -> None:
        command = [sys.executable, *program, "serve", "--port", "0", *arguments]
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=None if env is None else {**os.environ, **env},
        )
        self.lines: list[str] = []
        urls: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, args=(urls,), daemon=True).start()
        url = urls.get(timeout=timeout)
        assert url is not None, f"the server ended: {self.log}"
        self.url = url
        self.client = httpx.Client(base_url=url, timeout=120)
        deadline = time.monotonic() + 10
        while self.client.get("/health").status_code != 200:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def _read(self, urls: queue.Queue[str | None]) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("inferx serves "):
                urls.put(line.split()[2])
        urls.put(None)

    @property
    def log(self) -> str:
        return "".join(self.lines)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    # ---- requests

    def post(self, path: str, expect: int = 200, **body: Any) -> Any:
        body.setdefault("temperature", 0)
        response = self.client.post(path, json=body)
        assert response.status_code == expect, response.text
        if expect == 200 and body.get("stream"):
            return sse(response.content.decode("utf-8"))
        return response.json()

    def complete(self, prompt: Any = COUNTING, **body: Any) -> Any:
        return self.post("/v1/completions", prompt=prompt, **body)

    def text(self, prompt: Any = COUNTING, **body: Any) -> str:
        body.setdefault("max_tokens", 32)
        return self.complete(prompt, **body)["choices"][0]["text"]

    def chat(self, content: str = "Hello!", **body: Any) -> Any:
        return self.post("/v1/chat/completions", messages=[{"role": "user", "content": content}], **body)

    def tokenize(self, text: str) -> list[int]:
        return self.post("/tokenize", prompt=text)["tokens"]

    # ---- state

    def gauge(self, name: str) -> float:
        for line in self.client.get("/metrics").text.splitlines():
            if line.startswith(name + "{"):
                return float(line.split()[-1])
        raise AssertionError(name)

    def idle(self) -> bool:
        """Nothing runs or waits, and every KV block is free or evictable."""
        busy = self.gauge("vllm:num_requests_running") + self.gauge("vllm:num_requests_waiting")
        return busy == 0 and self.gauge("inferx:num_free_kv_blocks") == self.gauge("inferx:num_kv_blocks")


def streamed_text(chunks: list[dict[str, Any]], index: int = 0) -> str:
    parts = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                parts.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
    return "".join(parts)
