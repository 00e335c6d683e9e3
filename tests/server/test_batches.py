"""/v1/files and /v1/batches over the scripted engine, through the official client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fake_engine import FakeEngine
from fake_server import ThreadServer, wait_until

from inferx.engine.protocol import BACKGROUND_PRIORITY
from inferx.errors import RequestFailedError
from inferx.server import limits_table as limits
from inferx.server.args import ServerArgs

pytestmark = pytest.mark.timeout(60)


def line(custom_id: str, url: str = "/v1/completions", method: str = "POST", **body: Any) -> dict[str, Any]:
    body = body or {"prompt": f"prompt {custom_id}", "max_tokens": 2}
    return {"custom_id": custom_id, "method": method, "url": url, "body": body}


def jsonl(*lines: Any) -> bytes:
    return b"".join(
        (part if isinstance(part, bytes) else json.dumps(part).encode()) + b"\n" for part in lines
    )


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def server(make_server: Any, engine: FakeEngine, tmp_path: Path) -> ThreadServer:
    return make_server(ServerArgs(batch_dir=str(tmp_path / "batches")), engine)


@pytest.fixture
def client(server: ThreadServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def upload(client: openai.OpenAI, data: bytes, name: str = "in.jsonl") -> Any:
    return client.files.create(file=(name, data), purpose="batch")


def create(client: openai.OpenAI, data: bytes, endpoint: str = "/v1/completions", **more: Any) -> Any:
    file = upload(client, data)
    return client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window="24h",
        **more,
    )


def ended(client: openai.OpenAI, batch: Any) -> Any:
    deadline = time.monotonic() + 30
    while batch.status not in ("completed", "failed", "cancelled", "expired"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
    return batch


def content(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(row) for row in client.files.content(file_id).text.splitlines()]


# Files


def test_files(client: openai.OpenAI) -> None:
    data = jsonl(line("a"))
    first = upload(client, data, "first.jsonl")
    assert (first.object, first.purpose, first.bytes) == ("file", "batch", len(data))
    assert (first.filename, first.status) == ("first.jsonl", "processed")
    second = upload(client, b"anything\n", "../../etc/passwd")
    assert second.filename == "passwd" or "/" not in second.filename
    assert [f.id for f in client.files.list()] == [second.id, first.id]
    assert [f.id for f in client.files.list(order="asc")] == [first.id, second.id]
    pages = client.files.list(limit=1)
    assert pages.has_more
    assert [f.id for f in pages] == [second.id, first.id]  # the client asks for the next page
    assert list(client.files.list(purpose="batch_output")) == []
    assert client.files.retrieve(first.id) == first
    assert client.files.content(first.id).read() == data
    assert client.files.delete(first.id).deleted
    with pytest.raises(openai.NotFoundError, match="there is no file"):
        client.files.retrieve(first.id)
    assert [f.id for f in client.files.list()] == [second.id]


def test_ids_are_keys_and_never_paths(client: openai.OpenAI, server: ThreadServer, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    for name in ("..%2f..%2fsecret", "../../secret", "..", "batches.sqlite3", "%00", "file-" + "0" * 32):
        for path in (f"/v1/files/{name}", f"/v1/files/{name}/content", f"/v1/batches/{name}"):
            response = httpx.get(server.url + path)
            assert response.status_code == 404, path
            assert response.content != b"secret"
        assert httpx.delete(f"{server.url}/v1/files/{name}").status_code in (404, 405)
    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.parametrize(
    ("form", "files", "param"),
    [
        ({"purpose": "fine-tune"}, {"file": ("a", b"x")}, "purpose"),
        ({}, {"file": ("a", b"x")}, "purpose"),
        ({"purpose": "batch"}, {"other": ("a", b"x")}, "file"),
        ({"purpose": "batch"}, {"file": ("a", b"x"), "more": ("b", b"y")}, "file"),
        ({"purpose": "batch"}, {"file": ("n" * 300, b"x")}, "file"),
    ],
)
def test_uploads_that_are_refused(
    server: ThreadServer, form: dict[str, str], files: dict[str, Any], param: str
) -> None:
    response = httpx.post(f"{server.url}/v1/files", data=form, files=files)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert httpx.get(f"{server.url}/v1/files").json()["data"] == []


def test_forms_that_are_none(server: ThreadServer) -> None:
    url = f"{server.url}/v1/files"
    assert httpx.post(url, json={"purpose": "batch"}).status_code == 415
    for kind, body in (
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=a", b"--b\r\n"),
        ("multipart/form-data; boundary=a", b'--a\r\nContent-Disposition: form-data; name="file'),
    ):
        response = httpx.post(url, content=body, headers={"content-type": kind})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] in ("file", "purpose")


def test_a_file_that_is_too_large(
    server: ThreadServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(limits.LIMITS, "file_bytes", limits.FILE_BYTES)
    monkeypatch.setattr(limits, "FILE_BYTES", limits.Limit("file_bytes", 1000, "bytes", "", 413, None, ""))
    form = {"data": {"purpose": "batch"}, "timeout": 20}
    for size in (1001, 3_000_000):
        response = httpx.post(f"{server.url}/v1/files", files={"file": ("a", b"x" * size)}, **form)
        assert response.status_code == 413
        assert response.json()["error"]["param"] == "file"
    assert httpx.post(f"{server.url}/v1/files", files={"file": ("a", b"x" * 1000)}, **form).status_code == 200
    assert len(list((tmp_path / "batches" / "files").iterdir())) == 1


def test_more_than_the_disk_is_meant_for(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = client.files.create(file=("a.jsonl", b"x" * 600), purpose="batch")
    monkeypatch.setattr(limits, "FILES_BYTES", limits.Limit("files_bytes", 1000, "bytes", "", 429, None, ""))
    with pytest.raises(openai.RateLimitError, match="at most 1000 bytes"):
        client.with_options(max_retries=0).files.create(file=("b.jsonl", b"x" * 600), purpose="batch")
    client.files.delete(kept.id)
    client.files.create(file=("b.jsonl", b"x" * 600), purpose="batch")


def test_without_a_directory_it_says_so(make_server: Any) -> None:
    url = make_server(ServerArgs()).url
    for response in (
        httpx.get(f"{url}/v1/files"),
        httpx.get(f"{url}/v1/batches"),
        httpx.post(f"{url}/v1/batches", json={}),
        httpx.post(f"{url}/v1/files", files={"file": ("a", b"x")}, data={"purpose": "batch"}),
    ):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "batches_not_enabled"
        assert "--batch-dir" in response.json()["error"]["message"]


# Batches


def test_a_batch(client: openai.OpenAI, engine: FakeEngine) -> None:
    rows = [line(f"r{i}") for i in range(30)]
    rows[7]["body"] = {"prompt": "x", "max_tokens": -1}
    rows[8]["body"] = {"prompt": "x", "model": "another"}
    rows[9]["body"] = {"prompt": "x", "stream": True}
    batch = create(client, jsonl(*rows), metadata={"why": "test"})
    assert (batch.object, batch.endpoint, batch.metadata) == ("batch", "/v1/completions", {"why": "test"})
    assert batch.expires_at is not None
    assert batch.expires_at - batch.created_at == 24 * 3600
    batch = ended(client, batch)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (30, 27, 3)
    assert batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
    outputs = {row["custom_id"]: row for row in content(client, batch.output_file_id)}
    assert outputs.keys() == {f"r{i}" for i in range(30)} - {"r7", "r8", "r9"}
    alone = client.completions.create(model="fake-model", prompt="prompt r3", max_tokens=2)
    for row in outputs.values():
        assert row["error"] is None
        assert row["response"]["status_code"] == 200
        assert row["response"]["body"]["object"] == "text_completion"
    assert outputs["r3"]["response"]["body"]["choices"][0]["text"] == alone.choices[0].text
    assert len({row["id"] for row in outputs.values()}) == 27
    errors = {row["custom_id"]: row for row in content(client, batch.error_file_id)}
    found = {
        name: (row["response"]["status_code"], row["response"]["body"]["error"]["param"])
        for name, row in errors.items()
    }
    assert found == {"r7": (400, "max_tokens"), "r8": (404, "model"), "r9": (400, "stream")}
    assert set(engine.priorities[:-1]) == {BACKGROUND_PRIORITY}
    assert engine.priorities[-1] == 0  # the one over HTTP
    output = client.files.retrieve(batch.output_file_id)
    assert output.purpose == "batch_output"
    assert [b.id for b in client.batches.list()] == [batch.id]


def test_errors_are_those_over_http(client: openai.OpenAI, server: ThreadServer) -> None:
    bodies: list[dict[str, Any]] = [
        {"prompt": "x", "n": 0},
        {"prompt": [], "max_tokens": 1},
        {"prompt": "x", "temperature": "hot"},
        {"prompt": "x" * 5000},
    ]
    batch = ended(client, create(client, jsonl(*(line(str(i), **b) for i, b in enumerate(bodies)))))
    assert batch.output_file_id is None
    for row in content(client, batch.error_file_id):
        over_http = httpx.post(f"{server.url}/v1/completions", json=bodies[int(row["custom_id"])])
        assert row["response"]["status_code"] == over_http.status_code
        assert row["response"]["body"] == over_http.json()


@pytest.mark.parametrize(
    ("endpoint", "body", "kind"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "chat.completion"),
        ("/v1/embeddings", {"input": ["a", "b"]}, "list"),
        ("/v1/responses", {"input": "hi"}, "response"),
    ],
)
def test_other_endpoints(client: openai.OpenAI, endpoint: str, body: dict[str, Any], kind: str) -> None:
    batch = ended(client, create(client, jsonl(line("a", endpoint, **body)), endpoint))
    (row,) = content(client, batch.output_file_id)
    assert row["response"]["body"]["object"] == kind


def test_a_file_that_is_no_batch_fails_with_line_numbers(client: openai.OpenAI, engine: FakeEngine) -> None:
    data = jsonl(
        line("a"),
        b"",
        b"{not json",
        line("b", method="GET"),
        line("c", url="/v1/embeddings"),
        line("a"),
        {"custom_id": "d", "method": "POST", "url": "/v1/completions"},
        line(""),
        b"\xff\xfe",
        line("x" * 600),
        line("tab\there"),
    )
    batch = ended(client, create(client, data))
    assert batch.status == "failed"
    assert batch.failed_at is not None
    assert batch.errors is not None
    found = [(e.line, e.code, e.param) for e in batch.errors.data or []]
    assert found == [
        (3, "invalid_json_line", None),
        (4, "invalid_method", "method"),
        (5, "invalid_url", "url"),
        (6, "duplicate_custom_id", "custom_id"),
        (7, "invalid_json_line", None),
        (8, "invalid_line", "custom_id"),
        (9, "invalid_json_line", None),
        (10, "invalid_line", "custom_id"),
        (11, "invalid_line", "custom_id"),
    ]
    assert "line 1" in (batch.errors.data or [])[3].message  # type: ignore[operator]
    assert batch.output_file_id is None
    assert engine.seen == []


@pytest.mark.parametrize("data", [b"", b"\n \n"])
def test_an_empty_file_fails(client: openai.OpenAI, data: bytes) -> None:
    batch = ended(client, create(client, data))
    assert batch.status == "failed"
    assert [e.code for e in batch.errors.data] == ["empty_file"]


def test_too_many_lines_and_lines_too_long(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_LINES", limits.Limit("", 3, "lines", "", 400, None, ""))
    monkeypatch.setattr(limits, "BATCH_LINE_BYTES", limits.Limit("", 2000, "bytes", "", 400, None, ""))
    batch = ended(client, create(client, jsonl(*(line(str(i)) for i in range(4)))))
    assert [(e.code, e.line) for e in batch.errors.data] == [("too_many_requests", 4)]
    long = line("b", prompt="x" * 3_000_000)
    batch = ended(client, create(client, jsonl(line("a"), long, line("a"))))
    assert [(e.code, e.line) for e in batch.errors.data] == [
        ("line_too_long", 2),
        ("duplicate_custom_id", 3),
    ]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input_file_id": "file-unknown"}, "input_file_id"),
        ({"input_file_id": "../x"}, "input_file_id"),
        ({"endpoint": "/v1/other"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "metadata"),
    ],
)
def test_batches_that_are_refused(client: openai.OpenAI, change: dict[str, Any], param: str) -> None:
    body = {"endpoint": "/v1/completions", "completion_window": "24h"}
    body["input_file_id"] = upload(client, jsonl(line("a"))).id
    with pytest.raises(openai.BadRequestError) as caught:
        client.batches.create(**{**body, **change})
    assert caught.value.param == param
    assert list(client.batches.list()) == []


def test_cancel_keeps_what_is_answered(client: openai.OpenAI, engine: FakeEngine) -> None:
    held = FakeEngine.generate

    async def generate(self: FakeEngine, prompt: list[int], *args: Any, **kwargs: Any) -> Any:
        self.hold = len(self.seen) >= 5
        async for output in held(self, prompt, *args, **kwargs):
            yield output

    engine.generate = generate.__get__(engine)  # type: ignore[method-assign]
    batch = create(client, jsonl(*(line(str(i)) for i in range(200))))
    wait_until(lambda: len(engine.waiting) > 50)
    batch = client.batches.retrieve(batch.id)
    assert batch.status == "in_progress"
    with pytest.raises(openai.ConflictError, match="not finished"):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = ended(client, batch)
    assert batch.status == "cancelled"
    assert batch.cancelling_at <= batch.cancelled_at
    assert not engine.waiting
    rows = content(client, batch.output_file_id) if batch.output_file_id else []
    assert len(rows) == batch.request_counts.completed < 200
    assert batch.error_file_id is None
    with pytest.raises(openai.ConflictError, match="cancelled"):
        client.batches.cancel(batch.id)
    assert client.files.delete(batch.input_file_id).deleted


def test_what_is_not_answered_in_time_expires(
    client: openai.OpenAI, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inferx.server.batch.service.WINDOW_SECONDS", 1)
    engine.hold = True
    batch = ended(client, create(client, jsonl(*(line(str(i)) for i in range(5)))))
    engine.hold = False
    assert batch.status == "expired"
    assert batch.request_counts.failed == 5
    for row in content(client, batch.error_file_id):
        assert row["response"] is None
        assert row["error"]["code"] == "batch_expired"


def test_a_request_that_fails_is_an_error_of_its_own(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.fail = RequestFailedError("injected")
    batch = ended(client, create(client, jsonl(line("a"), line("b"))))
    assert batch.status == "completed"
    assert batch.request_counts.failed == 2
    for row in content(client, batch.error_file_id):
        assert row["response"]["status_code"] == 500
        assert row["response"]["body"]["error"]["code"] == "request_failed"


def test_a_full_queue_is_waited_for(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.queue_capacity = 0
    batch = create(client, jsonl(line("a", prompt="x", max_tokens=1)))
    time.sleep(0.3)
    engine.queue_capacity = None
    batch = ended(client, batch)
    assert batch.status == "completed"


def test_several_batches_share_the_engine(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.step_seconds = 0.001
    batches = [create(client, jsonl(*(line(f"{i}-{j}") for j in range(40)))) for i in range(6)]
    for i, batch in enumerate(batches):
        batch = ended(client, batch)
        rows = content(client, batch.output_file_id)
        assert {row["custom_id"] for row in rows} == {f"{i}-{j}" for j in range(40)}
    assert [b.id for b in client.batches.list(limit=2)] == [b.id for b in reversed(batches)]


def test_unfinished_ones_are_bounded(
    client: openai.OpenAI, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNFINISHED_BATCHES", limits.Limit("", 2, "batches", "", 429, None, ""))
    engine.hold = True
    first = [create(client, jsonl(line("a"))) for _ in range(2)]
    with pytest.raises(openai.RateLimitError, match="not finished"):
        create(client, jsonl(line("a")))
    engine.hold = False
    for batch in first:
        assert ended(client, batch).status == "completed"
    assert ended(client, create(client, jsonl(line("a")))).status == "completed"


def test_two_servers_do_not_share_a_directory(server: ThreadServer, make_server: Any, tmp_path: Path) -> None:
    assert httpx.get(f"{server.url}/v1/files").status_code == 200
    other = make_server(ServerArgs(batch_dir=str(tmp_path / "batches")))
    response = httpx.get(f"{other.url}/v1/files")
    assert response.status_code == 500
