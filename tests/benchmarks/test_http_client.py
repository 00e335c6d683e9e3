"""What the benchmark's client makes of the bytes it kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from benchmarks.http.client import look_at
from benchmarks.http.work import make_order

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
STREAM = {"stream": True, "texts": True}


def stream(texts: list[str], tokens: int, end: str = "[DONE]") -> bytes:
    events: list[dict[str, Any]] = [{"choices": [{"text": text}]} for text in texts]
    events.append({"choices": [], "usage": {"completion_tokens": tokens}})
    lines = [f"data: {json.dumps(e)}\n\n" for e in events] + [": waiting\n\n", f"data: {end}\n\n"]
    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(x), x.encode()) for x in lines) + b"0\r\n\r\n"


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_streams_are_counted_however_they_were_cut(piece: int) -> None:
    raw = stream(["a", "\r\n\r\n", "ü"], 5)
    pieces = [raw[i : i + piece] for i in range(0, len(raw), piece)]
    assert look_at([pieces], STREAM) == {"chunks": 3, "tokens": 5, "texts": ["a\r\n\r\nü"]}


def test_failures_are_not_counted_as_answers() -> None:
    with pytest.raises(RuntimeError, match=r"\[DONE\]"):
        look_at([[stream(["a"], 1, end="{}")]], STREAM)
    with pytest.raises(RuntimeError, match="429"):
        look_at([[b"HTTP/1.1 429 Too Many Requests\r\n\r\n{}"]], STREAM)


def test_whole_answers() -> None:
    body = json.dumps({"choices": [{"text": "ab"}], "usage": {"completion_tokens": 2}}).encode()
    order = {"stream": False, "texts": True}
    assert look_at([[HEAD, body]], order) == {"chunks": 0, "tokens": 2, "texts": ["ab"]}


def test_each_round_has_prompts_of_its_own() -> None:
    first, again, other = (make_order(n, 3, 8, 4) for n in (1, 1, 2))
    assert first == again
    assert not {tuple(p) for p in first["prompts"]} & {tuple(p) for p in other["prompts"]}
