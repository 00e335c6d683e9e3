"""Nothing leaves the machine unless asked: all connections and look-ups of a server and its engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_server import RealServer

GUARD = Path(__file__).with_name("network_guard")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "network.log"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(GUARD), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("INFERX_TEST_NETWORK_LOG", str(path))
    return path


def off_the_machine(log: Path) -> list[str]:
    """Lines about anything but this machine: loopback, Unix sockets, the unspecified address."""
    lines = log.read_text().splitlines() if log.exists() else []
    local = ("127.0.0.1", "'localhost'", "'::1'", "None", "('', ")
    return [
        line
        for line in lines
        if not any(name in json.loads(line)[2] for name in local)
        and not json.loads(line)[2].startswith(("'/", "b'/", "b'\\x00", "'\\x00"))
    ]


@pytest.mark.real_model
@pytest.mark.timeout(180)
def test_a_server_talks_to_this_machine_only(log: Path) -> None:
    server = RealServer("--max-model-len", "512")
    try:
        assert server.text(max_tokens=4)
        assert server.chat("hi", max_tokens=4)
        server.post("/v1/completions", prompt="x", model="someone/elses-model", expect=404)
        server.client.get("/openapi.json")
    finally:
        assert server.stop() == 0
    assert log.exists(), "the guard saw nothing: it was not there"
    assert off_the_machine(log) == []


def test_the_guard_sees(log: Path) -> None:
    code = """
import socket
def look_up():
    socket.getaddrinfo("example.invalid", 80)
def connect():
    socket.create_connection(("192.0.2.1", 9), 0.01)
for call in (look_up, connect):
    try:
        call()
    except OSError:
        pass
socket.getaddrinfo("127.0.0.1", 80)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    seen = off_the_machine(log)
    assert any("example.invalid" in line for line in seen)
    assert any("192.0.2.1" in line for line in seen)
    assert not any("127.0.0.1" in line for line in seen)
