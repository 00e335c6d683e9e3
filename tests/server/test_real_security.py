"""Keys, names that look like paths, floods: what a real server process shows, opens and holds."""

from __future__ import annotations

import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from fake_server import wait_until
from real_server import RealServer, streamed_text

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]
KEYS = ("first-secret-1", "second-secret-2", "third-secret-3")
SECRET_FILE = "inferx-names-are-keys.txt"
NAMES = [
    "../../etc",
    "/etc/passwd",
    "/etc/hostname",
    "..%2f..%2f",
    "%2e%2e/%2e%2e/etc/passwd",
    "a\0b",
    "x" * 10**6,
    "~",
    "~root",
    "C:\\x",
    "http://127.0.0.1/",
    "file:///etc/passwd",
    "smollm2-135m-instruct/../x",
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "events"


@pytest.fixture(scope="module")
def server(report: Path) -> Iterator[RealServer]:
    """Keys from the variable; every access to files is written down."""
    server = RealServer(
        "--max-num-seqs", "8", "--max-model-len", "4096", "--access-log", "--no-enable-prefix-caching",
        program=(str(Path(__file__).with_name("audited.py")), str(report)),
        env={"INFERX_API_KEY": f"{KEYS[0]}, {KEYS[1]},{KEYS[2]}"},
    )  # fmt: skip
    server.client.headers["authorization"] = f"Bearer {KEYS[1]}"
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log


class TestKeys:
    def test_every_route_is_closed_but_health(self, server: RealServer) -> None:
        document = server.client.get("/openapi.json").json()
        paths = [
            *document["paths"],
            "/",
            "/nothing",
            "/docs",
            "/v1",
            "//v1/models",
            "/health/",
        ]
        assert "/metrics" in paths
        for path in paths:
            for method in ("GET", "POST", "DELETE", "OPTIONS", "HEAD"):
                for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": ""}):
                    response = httpx.request(method, server.url + path, headers=headers)
                    assert response.status_code == (401 if path != "/health" else response.status_code), path
        assert httpx.get(f"{server.url}/health").status_code == 200
        error = httpx.get(f"{server.url}/v1/models").json()["error"]
        assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")

    @pytest.mark.parametrize("key", KEYS)
    def test_any_key_in_either_header(self, server: RealServer, key: str) -> None:
        for headers in (
            {"authorization": f"Bearer {key}"},
            {"authorization": f"bearer {key}"},
            {"x-api-key": key},
            {"authorization": "Bearer none", "x-api-key": key},
        ):
            assert httpx.get(f"{server.url}/version", headers=headers).status_code == 200
        for wrong in (key[:-1], key + "x", key.upper(), f"{key},{KEYS[0]}", ""):
            assert httpx.get(f"{server.url}/version", headers={"x-api-key": wrong}).status_code == 401

    def test_keys_show_nowhere(self, server: RealServer) -> None:
        httpx.post(f"{server.url}/v1/completions", headers={"x-api-key": KEYS[0]}, json={"prompt": "x"})
        httpx.get(f"{server.url}/v1/models", headers={"x-api-key": KEYS[2] + "x"})
        process = psutil.Process(server.process.pid)
        children = process.children(recursive=True)
        assert children
        for one in (process, *children):
            assert "secret" not in " ".join(one.cmdline())
        for child in children:
            assert "secret" not in str(child.environ())
        assert "secret" not in server.client.get("/metrics").text
        assert "secret" not in server.log
        assert "POST /v1/completions" in server.log or server.lines

    def test_only_this_machine_is_listened_to(self, server: RealServer) -> None:
        listening = [
            c.laddr.ip
            for c in psutil.Process(server.process.pid).net_connections("tcp")
            if c.status == psutil.CONN_LISTEN
        ]
        assert listening == ["127.0.0.1"]


def test_names_never_reach_the_file_system(server: RealServer, report: Path, tmp_path: Path) -> None:
    """Case F06.  Requests are answered without a file being touched, and alike whether the target exists."""
    existing = tmp_path / SECRET_FILE
    existing.write_text("x")
    link = tmp_path / "link"
    link.symlink_to("/etc")
    names = [*NAMES, str(existing), str(tmp_path / "missing"), str(link), str(link / "passwd")]
    text = {"messages": [{"role": "user", "content": "x"}]}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": text,
        "/v1/responses": {"input": "x"},
        "/v1/embeddings": {"input": "x"},
        "/tokenize": {"prompt": "x"},
        "/detokenize": {"tokens": [1]},
    }
    server.complete("x", max_tokens=1)  # what is opened once is open now
    server.client.get("/v1/models/other")
    before = report.stat().st_size
    for name in names:
        for path, body in bodies.items():
            response = server.client.post(path, json={**body, "model": name})
            assert response.status_code == 404, (path, name[:40])
            assert response.json()["error"]["code"] == "model_not_found"
            assert len(response.json()["error"]["message"]) < 300
        for field in ("adapter", "lora_name", "lora_path", "chat_template"):
            status = server.client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, field: name})
            assert status.status_code in (200, 400)
        if len(name) < 1000 and "\0" not in name:
            assert server.client.get(f"/v1/models/{name}").status_code == 404
    with report.open("rb") as file:
        file.seek(before)
        events = [line.decode(errors="replace") for line in file.read().splitlines()]
    touched = [
        e for e in events if e.startswith(("open ", "os.", "shutil.", "glob.", "pathlib.", "subprocess."))
    ]
    assert touched == []
    assert [e for e in events if "etc" in e or SECRET_FILE in e] == []
    # The report does see what is opened: the model's own files at start.
    assert "tokenizer" in report.read_text(errors="replace")


class TestMemory:
    """Case F04: what a client sends without end is not held."""

    def test_floods(self, server: RealServer) -> None:
        host, _, port = server.url.removeprefix("http://").partition(":")
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        key = f"x-api-key: {KEYS[0]}\r\n".encode()
        floods = (
            (head + b"X-Large: ", b"x" * 65536, 16 << 20),
            (head, b"".join(b"X-%d: y\r\n" % i for i in range(5000)), 2 << 20),
            (
                head + key + b"Transfer-Encoding: chunked\r\n\r\n",
                b"10000\r\n" + b"x" * 65536 + b"\r\n",
                2 << 30,
            ),
            (head + key + b"Content-Length: 1000000000000\r\n\r\n", b"x" * 65536, 2 << 30),
            (head + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n", 2 << 30),
        )
        for start, part, most in floods:
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                sent = 0
                try:
                    connection.sendall(start)
                    while sent < most:
                        connection.sendall(part)
                        sent += len(part)
                except OSError:
                    pass
                assert sent < 100 << 20, "the server goes on reading"
            assert httpx.get(f"{server.url}/health", timeout=2).status_code == 200
        assert process.memory_info().rss - before < 200 << 20

    @pytest.mark.parametrize("size", [200_000, 3_000_000])
    def test_ordinary_large_prompts(self, server: RealServer, size: int) -> None:
        """They are read and looked at: too long for this context, not too large for the server."""
        response = server.client.post("/v1/completions", json={"prompt": "word " * (size // 5)})
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert "4096 tokens" in response.json()["error"]["message"]

    def test_a_thousand_messages(self, server: RealServer) -> None:
        messages = [{"role": ("user", "assistant")[i % 2], "content": "a"} for i in range(1000)]
        response = server.client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        few = {"messages": messages[:301], "max_tokens": 1}
        assert server.client.post("/v1/chat/completions", json=few).status_code == 200


class TestLongUnbrokenTexts:
    """Case F10x.  1 MB strings that must be tokenised, since only their end is to be used."""

    TEXTS = ("a" * 1_000_000, "_" * 1_000_000, " " * 1_000_000, "歪" * 300_000)

    def test_nobody_is_held_up(self, server: RealServer) -> None:
        options: dict[str, Any] = {"max_tokens": 48, "ignore_eos": True, "stream": True}
        alone = streamed_text(server.complete("Once upon a time", **options))
        done = threading.Event()
        delays: list[float] = []

        def poll() -> None:
            with httpx.Client(base_url=server.url, timeout=30) as client:
                while not done.is_set():
                    started = time.monotonic()
                    assert client.get("/health").status_code == 200
                    delays.append(time.monotonic() - started)
                    time.sleep(0.01)

        def cut(text: str) -> int:
            body = {"prompt": text, "truncate_prompt_tokens": 8, "max_tokens": 1}
            response = server.client.post("/v1/completions", json=body, timeout=120)
            assert response.status_code in (200, 400), response.text
            if response.status_code == 400:
                assert response.json()["error"]["code"] == "text_timeout"
            return response.status_code

        def refuse(text: str) -> float:
            started = time.monotonic()
            response = server.client.post("/v1/completions", json={"prompt": text}, timeout=120)
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "context_length_exceeded"
            return time.monotonic() - started

        with ThreadPoolExecutor(16) as pool:
            polling = pool.submit(poll)
            streams = [pool.submit(server.complete, "Once upon a time", **options) for _ in range(4)]
            cutting = [pool.submit(cut, text) for text in self.TEXTS]
            refused = [pool.submit(refuse, text) for text in self.TEXTS]
            answers = [streamed_text(s.result()) for s in streams]
            statuses = [c.result() for c in cutting]
            seconds = [r.result() for r in refused]
            done.set()
            polling.result()
        assert answers == [alone] * 4
        delays.sort()
        p99 = delays[int(len(delays) * 0.99)]
        print(
            f"p50 {statistics.median(delays):.4f} s, p99 {p99:.4f} s of {len(delays)}; {statuses}, {seconds}"
        )
        assert p99 < 0.5
        assert 200 in statuses


def test_keys_on_the_command_line_are_repeatable() -> None:
    server = RealServer("--api-key", "one-1", "--api-key", "two-2", "--max-model-len", "64")
    try:
        for key, status in (("one-1", 200), ("two-2", 200), ("three", 401)):
            headers = {"authorization": f"Bearer {key}"}
            assert httpx.get(f"{server.url}/v1/models", headers=headers).status_code == status
        (child,) = psutil.Process(server.process.pid).children()
        assert "one-1" not in " ".join(child.cmdline())
        wait_until(lambda: "one-1" not in server.log)
    finally:
        server.stop()


@pytest.mark.parametrize(
    "arguments", [("--api-key", ""), ("--header-timeout", "0"), ("--max-connections", "-1")]
)
def test_wrong_options(arguments: tuple[str, ...]) -> None:
    import sys

    command = [sys.executable, "-m", "inferx.cli.main", "serve", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert arguments[0] in result.stderr
    assert "Traceback" not in result.stderr
