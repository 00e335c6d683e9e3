"""The HTTP server over the scripted engine, in a thread, and what tests read from it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

from fake_engine import FakeEngine

from inferx.server.args import ServerArgs
from inferx.server.serve import Server, _config, bind, url_of


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


def sse(text: str) -> list[dict[str, Any]]:
    """The events of a complete stream; checks its framing."""
    blocks = text.split("\n\n")
    assert blocks.pop() == ""
    events = [b for b in blocks if not b.startswith(":")]
    assert events.pop() == "data: [DONE]"
    assert all(e.startswith("data: ") and "\n" not in e for e in events)
    return [json.loads(e[len("data: ") :]) for e in events]


def wait_until(condition: Any, seconds: float = 3.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)
