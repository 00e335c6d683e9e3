"""Small contexts, small pools, and how servers end: each on a server of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from fake_server import wait_until
from real_server import RealServer

pytestmark = [pytest.mark.real_model]


class TestSmallContext:
    LIMIT = 64

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[RealServer]:
        server = RealServer("--max-model-len", str(cls.LIMIT))
        yield server
        server.stop()

    @pytest.mark.parametrize("stream", [False, True])
    def test_prompts_around_the_limit(self, server: RealServer, stream: bool) -> None:
        for length in (self.LIMIT, self.LIMIT + 1):
            error = server.complete([7] * length, max_tokens=1, stream=stream, expect=400)["error"]
            assert "64" in error["message"]
            assert str(length) in error["message"]
        answer = server.complete([7] * (self.LIMIT - 1), max_tokens=1, stream=stream)
        last = answer[-1] if stream else answer
        assert last["choices"][0]["finish_reason"] == "length"
        error = server.complete([7] * 8, max_tokens=self.LIMIT - 3, stream=stream, expect=400)["error"]
        assert all(number in error["message"] for number in ("64", " 8 ", "61"))

    def test_long_conversation(self, server: RealServer) -> None:
        for stream in (False, True):
            error = server.chat("word " * 640, stream=stream, expect=400)["error"]
            assert error["code"] == "context_length_exceeded"
            assert "64" in error["message"]

    def test_chat_may_fill_the_context(self, server: RealServer) -> None:
        answer = server.chat(ignore_eos=True)
        assert answer["usage"]["total_tokens"] == self.LIMIT
        wait_until(server.idle, 5)

    def test_death_of_the_engine_process(self, server: RealServer) -> None:
        """Last of this class: running requests get an error, health says so, and SIGTERM still works."""
        with ThreadPoolExecutor(1) as pool:
            body = {"prompt": [7] * 8, "max_tokens": 50, "ignore_eos": True, "n": 16}
            running = pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=60)
            wait_until(lambda: server.gauge("vllm:num_requests_running") >= 1, 10)
            (engine,) = psutil.Process(server.process.pid).children()
            engine.kill()
            response = running.result()
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_dead"
        assert server.client.get("/health").status_code == 503
        assert server.complete([7], expect=503)["error"]["code"] == "engine_dead"
        assert server.client.get("/v1/models").status_code == 200
        # A supervisor that restarts what failed must see that this did.
        assert server.stop() == 1


class TestSmallPool:
    """256 tokens of KV cache under a context limit of 1024, which is therefore lowered to 256."""

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[RealServer]:
        server = RealServer(
            "--max-model-len", "1024", "--num-gpu-blocks-override", "16", "--shutdown-timeout", "1"
        )
        yield server
        server.stop()

    def test_what_never_fits_is_refused_and_blocks_nobody(self, server: RealServer) -> None:
        started = time.monotonic()
        error = server.complete([7] * 300, max_tokens=4, expect=400)["error"]
        assert "300" in error["message"]
        assert error["code"] == "context_length_exceeded"
        error = server.complete([9] * 100, max_tokens=500, expect=400)["error"]
        assert "256" in error["message"]
        assert server.client.get("/v1/models").json()["data"][0]["max_model_len"] == 256
        assert time.monotonic() - started < 5
        with ThreadPoolExecutor(11) as pool:
            growing = pool.submit(
                server.client.post,
                "/v1/completions",
                json={"prompt": [9] * 100, "max_tokens": 156, "ignore_eos": True, "temperature": 0},
            )
            short = [pool.submit(server.complete, [11 + i] * 8, max_tokens=4) for i in range(10)]
            assert [s.result()["usage"]["completion_tokens"] for s in short] == [4] * 10
            end = growing.result()
        assert end.json()["choices"][0]["finish_reason"] == "length"
        assert end.json()["usage"]["completion_tokens"] == 156
        wait_until(server.idle, 5)

    def test_shutdown_under_load(self, server: RealServer) -> None:
        """Last of this class.  Running requests get their second, then an error that a client can read."""
        body = {"prompt": [[5] * 8] * 200, "max_tokens": 200, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            stream = response.iter_lines()
            lines = [next(stream)]
            server.process.send_signal(signal.SIGTERM)
            lines += list(stream)
        data = [line for line in lines if line]
        assert data[-1] == "data: [DONE]"
        assert "draining" in data[-2]
        assert server.process.wait(30) == 0
        assert "Traceback" not in server.log


class TestFullQueue:
    @pytest.fixture(scope="class")
    @classmethod
    def server(cls) -> Iterator[RealServer]:
        server = RealServer("--max-num-seqs", "1", "--max-num-batched-tokens", "64", "--max-waiting", "1")
        yield server
        server.stop()

    def test_one_runs_one_waits_and_more_are_refused(self, server: RealServer) -> None:
        body = {"prompt": [7] * 8, "max_tokens": 150, "ignore_eos": True, "temperature": 0}
        with ThreadPoolExecutor(6) as pool:
            # At once, on an idle engine: a place in the batch counts although no step has been planned yet.
            jobs = [
                pool.submit(httpx.post, f"{server.url}/v1/completions", json=body, timeout=60)
                for _ in range(6)
            ]
            answers = [job.result() for job in jobs]
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [200, 200, 429, 429, 429, 429]
        for answer in answers:
            if answer.status_code == 429:
                assert answer.json()["error"]["code"] == "queue_full"
                assert 1 <= int(answer.headers["retry-after"]) <= 60
            else:
                assert answer.json()["usage"]["completion_tokens"] == 150
        wait_until(server.idle, 5)
        assert server.complete([[7] * 8] * 2, max_tokens=1)["usage"]["completion_tokens"] == 2
        assert server.complete([[7] * 8] * 3, expect=400)["error"]["param"] == "prompt"

    def test_the_log_names_defaults_that_are_not_neutral(self, server: RealServer) -> None:
        (line,) = [line for line in server.lines if "generation_config.json" in line]
        assert "top_p" in line or "temperature" in line


def test_start_that_fails_in_the_engine_process() -> None:
    command = [sys.executable, "-m", "inferx.cli.main", "serve", "--port", "0", "--max-model-len", "999999"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "max_model_len must be at most the model's 8192 positions, got 999999" in result.stderr
