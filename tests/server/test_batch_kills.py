"""Batches are killed in the middle, for real, and started again: no line is lost, none comes twice."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from real_server import RealServer
from tests.engine.core_harness import save_tiny_llama

from inferx.server.batch.record import OutputFile

pytestmark = pytest.mark.timeout(300)
COUNT = 150


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("tiny"), num_hidden_layers=4, hidden_size=160)


def write_requests(path: Path, count: int = COUNT) -> None:
    rng = random.Random(0)
    with path.open("w") as file:
        for i in range(count):
            body: dict[str, Any] = {"prompt": [rng.randrange(256) for _ in range(20)], "temperature": 0}
            body |= {"max_tokens": 40, "ignore_eos": True}
            if i % 10 == 3:
                body["max_tokens"] = -1
            request = {"custom_id": f"r{i}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(request) + "\n")


def start(tiny: Path, source: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "inferx.cli.main", "run-batch", str(source), "--model", str(tiny)]
    command += ["--max-num-seqs", "4", "--threads", "1"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def size_of(*paths: Path) -> int:
    return sum(path.stat().st_size for path in paths if path.exists())


def wait_for_growth(process: subprocess.Popen[str], *paths: Path, bytes_more: int = 1) -> None:
    before, deadline = size_of(*paths), time.monotonic() + 60
    while size_of(*paths) < before + bytes_more:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def read(path: Path) -> list[dict[str, Any]]:
    data = path.read_text()
    assert data.endswith("\n")
    return [json.loads(row) for row in data.splitlines()]


def answers(output: Path) -> dict[str, str]:
    return {row["custom_id"]: row["response"]["body"]["choices"][0]["text"] for row in read(output)}


def test_run_batch(tiny: Path, tmp_path: Path) -> None:
    source, output, errors = (tmp_path / name for name in ("a.jsonl", "a.output.jsonl", "a.errors.jsonl"))
    undisturbed = tmp_path / "b.jsonl"
    write_requests(source)
    write_requests(undisturbed)
    rng = random.Random(1)
    for how in (signal.SIGKILL, signal.SIGKILL, signal.SIGINT):
        process = start(tiny, source)
        wait_for_growth(process, output, errors, bytes_more=rng.randint(1, 6000))
        process.send_signal(how)
        log = process.communicate(timeout=60)[1]
        assert process.returncode == (130 if how == signal.SIGINT else -how), log
        if how == signal.SIGKILL:  # what a kill in the middle of a write leaves
            with output.open("a") as file:
                file.write('{"id":"batch_req_0","custom_id":"r149","respon')
    assert "the same command goes on" in log
    assert "Traceback" not in log
    assert 0 < len(read(output)) < COUNT - 15
    process = start(tiny, source)
    log = process.communicate(timeout=120)[1]
    assert process.returncode == 0, log
    assert "requests are done already" in log
    wrong = {f"r{i}" for i in range(3, COUNT, 10)}
    rows = read(output)
    assert sorted(row["custom_id"] for row in rows) == sorted({f"r{i}" for i in range(COUNT)} - wrong)
    assert sorted(row["custom_id"] for row in read(errors)) == sorted(wrong)

    process = start(tiny, undisturbed)
    log = process.communicate(timeout=120)[1]
    assert process.returncode == 0, log
    assert answers(output) == answers(tmp_path / "b.output.jsonl")

    before = output.read_bytes(), errors.read_bytes()
    process = start(tiny, source)  # nothing left: no model is loaded, nothing is written
    log = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert "weights" not in log
    assert (output.read_bytes(), errors.read_bytes()) == before


def test_another_process_on_the_same_output_is_refused(tiny: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    write_requests(source, 3)
    held = OutputFile(tmp_path / "a.output.jsonl")
    process = start(tiny, source)
    log = process.communicate(timeout=60)[1]
    held.close()
    assert process.returncode == 1
    assert "another process is writing" in log


def test_an_output_of_another_batch_is_refused(tiny: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    write_requests(source, 3)
    line = {"id": "x", "custom_id": "other", "response": None, "error": None}
    (tmp_path / "a.output.jsonl").write_text(json.dumps(line) + "\n")
    process = start(tiny, source)
    log = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert "belongs to another batch" in log


def test_a_server(tiny: Path, tmp_path: Path) -> None:
    """Killed twice while its batches run; a third one brings them to their end."""
    source = tmp_path / "in.jsonl"
    write_requests(source)
    directory = tmp_path / "batches"
    options = ("--model", str(tiny), "--batch-dir", str(directory), "--max-num-seqs", "4", "--threads", "1")
    server = RealServer(*options)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    ids = []
    for _ in range(2):
        file = client.files.create(file=source, purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        ids.append(batch.id)
    left_over = directory / "files" / "file-0123"
    for _ in range(2):
        paths = [path for path in (directory / "files").iterdir() if path.stat().st_size < 20_000]
        wait_for_growth(server.process, *paths, bytes_more=5000)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        left_over.write_text("an upload that was cut off")
        server = RealServer(*options)
        assert not left_over.exists()
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
        assert {client.batches.retrieve(i).status for i in ids} <= {"validating", "in_progress"}
    deadline = time.monotonic() + 120
    while any(client.batches.retrieve(i).status != "completed" for i in ids):
        assert time.monotonic() < deadline, [client.batches.retrieve(i) for i in ids]
        time.sleep(0.1)
    found = []
    for batch_id in ids:
        batch = client.batches.retrieve(batch_id)
        counts = batch.request_counts
        assert counts is not None
        assert (counts.total, counts.completed, counts.failed) == (COUNT, COUNT - 15, 15)
        assert batch.output_file_id is not None
        text = client.files.content(batch.output_file_id).text
        rows = [json.loads(row) for row in text.splitlines()]
        assert len(rows) == len({row["custom_id"] for row in rows}) == COUNT - 15
        found.append({r["custom_id"]: r["response"]["body"]["choices"][0]["text"] for r in rows})
    assert found[0] == found[1]
    assert server.idle()
    assert server.stop() == 0


def test_a_server_that_is_told_to_stop(tiny: Path, tmp_path: Path) -> None:
    """SIGTERM puts batches down at once; the next server goes on, also with a cancellation."""
    source = tmp_path / "in.jsonl"
    write_requests(source, 400)
    options = ("--model", str(tiny), "--batch-dir", str(tmp_path / "b"), "--max-num-seqs", "2")
    server = RealServer(*options)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    file = client.files.create(file=source, purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    while client.batches.retrieve(batch.id).status == "validating":
        time.sleep(0.02)
    begun = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begun < 15, "it waited for the batch"
    server = RealServer(*options)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    assert client.batches.retrieve(batch.id).status in ("validating", "in_progress")
    client.batches.cancel(batch.id)
    while (now := client.batches.retrieve(batch.id)).status == "cancelling":
        time.sleep(0.02)
    assert now.status == "cancelled"
    assert server.stop() == 0
