"""Lines of batch files, and the record of what is done: torn lines, foreign files, millions of requests."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferx.errors import InferxError
from inferx.server.batch.lines import BadLine, error_line, parse_line, request_lines, response_line
from inferx.server.batch.record import CustomIds, OutputFile, Record
from inferx.server.batch.run import check_file

URLS = ("/v1/completions",)


def ids_of(*names: str) -> CustomIds:
    ids = CustomIds()
    for name in names:
        ids.add(name)
    return ids


def open_record(directory: Path, *names: str) -> Record:
    return Record(directory / "out", directory / "err", ids_of(*names))


def request(custom_id: str, **body: object) -> bytes:
    fields = {"custom_id": custom_id, "method": "POST", "url": URLS[0], "body": body}
    return json.dumps(fields).encode() + b"\n"


@given(names=st.lists(st.text(max_size=3), max_size=60))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_duplicates_and_places_are_those_of_a_dictionary(names: list[str]) -> None:
    ids = ids_of(*names)
    first: dict[str, int] = {}
    previous: dict[str, int] = {}
    duplicates = []
    for i, name in enumerate(names):
        if name in previous:
            duplicates.append((i, previous[name]))
        previous[name] = i
        first.setdefault(name, i)
    assert ids.duplicates() == duplicates
    wanted = [*names[::2], "somebody else"]
    assert ids.find(ids_of(*wanted)).tolist() == [first.get(name, -1) for name in wanted]
    assert CustomIds().find(ids).tolist() == [-1] * len(names)


@given(cut=st.integers(0, 400))
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_a_file_cut_anywhere_keeps_its_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    directory = tmp_path_factory.mktemp("cut")
    names = [f"r{i}" for i in range(4)]
    record = open_record(directory, *names)
    for i, name in enumerate(names):
        record.add(i, "output", response_line(name, 200, b'{"a": "b\\n"}'))
    record.close()
    data = (directory / "out").read_bytes()
    (directory / "out").write_bytes(data[:cut])
    whole = data[:cut].count(b"\n")
    record = open_record(directory, *names)
    assert record.done == bytes([1] * whole + [0] * (4 - whole))
    assert record.completed == whole
    for i in range(whole, 4):
        record.add(i, "output", response_line(names[i], 200, b"{}"))
    record.close()
    rows = [json.loads(row) for row in (directory / "out").read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == names


def test_both_files_count(tmp_path: Path) -> None:
    record = open_record(tmp_path, "a", "b", "c")
    record.add(2, "error", response_line("c", 400, b'{"error": 1}'))
    record.add(0, "error", error_line("a", "batch_expired", "too late"))
    record.close()
    record = open_record(tmp_path, "a", "b", "c")
    assert (record.completed, record.failed, record.num_done, record.total) == (0, 2, 2, 3)
    with pytest.raises(RuntimeError, match="answered twice"):
        record.add(2, "output", b"")
    record.close()


def test_files_of_another_batch_are_refused(tmp_path: Path) -> None:
    for text, message in (
        (b'{"custom_id": "z"}\n', "line 1: the input has no such custom_id"),
        (b'{"custom_id": "a"}\n{"custom_id": "a"}\n', "answered twice"),
        (b"no json\n", "line 1: expected a response"),
        (b'{"custom_id": "a"}\n\x00\x00\n', "line 2: expected a response"),
    ):
        (tmp_path / "out").write_bytes(text)
        with pytest.raises(InferxError, match=message):
            open_record(tmp_path, "a", "b")
        assert (tmp_path / "out").read_bytes() == text
    (tmp_path / "out").write_bytes(b"")
    open_record(tmp_path, "a", "b").close()  # and nothing is locked any more


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = OutputFile(tmp_path / "out")
    with pytest.raises(InferxError, match="another process"):
        OutputFile(tmp_path / "out")
    first.close()
    OutputFile(tmp_path / "out").close()


def test_the_body_goes_through_as_it_stands() -> None:
    body = b'{"prompt" : "\\ud83d\\ude00",  "n":1e0, "x": 123456789012345678901234567890}'
    line = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":' + body + b"}\r\n"
    assert bytes(parse_line(line, URLS).body) == body


@pytest.mark.parametrize(
    "line",
    [b"[]", b"null", b"{}", b'{"custom_id":1}', b"[" * 100_000, request("a")[:-2], b'{"custom_id":"\xff"}'],
)
def test_lines_that_are_no_requests(line: bytes) -> None:
    with pytest.raises(BadLine, match="JSON object"):
        parse_line(line, URLS)


def test_blank_lines_and_a_mark_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"\xef\xbb\xbf" + request("a") + b"\n  \r\n" + request("b").rstrip())
    assert [(line.number, line.index) for line in request_lines(path)] == [(1, 0), (4, 1)]
    assert check_file(path, URLS, None).errors == []


def test_memory_does_not_grow_with_the_bytes(tmp_path: Path) -> None:
    """A file of 60 MB takes what its 600 ids take."""
    path = tmp_path / "in"
    with path.open("wb") as file:
        for i in range(600):
            file.write(request(f"r{i}", prompt="x" * 100_000))
    tracemalloc.start()
    try:
        checked = check_file(path, URLS, None)
        assert sum(len(line.data) for line in request_lines(path)) > 60_000_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(checked.ids) == 600
    assert peak < 3_000_000
