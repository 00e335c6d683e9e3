"""The official client against a real server: what clients_check.sh runs, in the ordinary suite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "server"))
from real_server import RealServer  # noqa: E402

KEY = "a-key"


@pytest.fixture(scope="module")
def server() -> Iterator[RealServer]:
    server = RealServer("--max-model-len", "1024", "--api-key", KEY)
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log


@pytest.mark.real_model
@pytest.mark.timeout(240)
def test_all_that_it_can_do(server: RealServer) -> None:
    command = [sys.executable, str(HERE / "openai_client.py"), server.url, "smollm2-135m-instruct", KEY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "8 at once, async, streamed" in done.stdout


def test_a_wrong_key_is_noticed(server: RealServer) -> None:
    command = [sys.executable, str(HERE / "openai_client.py"), server.url, "smollm2-135m-instruct", "wrong"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "AuthenticationError" in done.stderr
