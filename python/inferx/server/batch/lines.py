"""The file format, as OpenAI's: a request a line going in, a response a line coming out."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from inferx.server import limits_table as limits
from inferx.server.errors import shorten


class RequestLine(msgspec.Struct):
    """body: the request's JSON as it stands in the file."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class Response(msgspec.Struct):
    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct):
    code: str
    message: str


class ResponseLine(msgspec.Struct):
    """``error`` in place of a response: the request was never answered.  An answer with a status other than
    200 is a response, in the file of errors."""

    id: str
    custom_id: str
    response: Response | None
    error: LineError | None


class Answered(msgspec.Struct):
    """What is read of a line of a file of responses."""

    custom_id: str


class BadLine(Exception):
    """A line is no request: why, and which of its fields."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_line") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


@dataclass(frozen=True)
class Line:
    """``number``: from 1, blank lines counted.  ``index``: from 0, without them."""

    number: int
    index: int
    data: bytes


def request_lines(path: Path) -> Iterator[Line]:
    """The lines of a file that are not blank, one at a time.

    A line longer than the limit comes cut to one byte more than that, which ``parse_line`` refuses.
    """
    most = limits.BATCH_LINE_BYTES.most
    number = index = 0
    with path.open("rb") as file:
        while data := file.readline(most + 1):
            number += 1
            if len(data) > most and not data.endswith(b"\n"):
                _skip_line(file)
            if number == 1:
                data = data.removeprefix(b"\xef\xbb\xbf")
            if data.strip():
                yield Line(number, index, data)
                index += 1


def _skip_line(file: BinaryIO) -> None:
    while (piece := file.readline(1 << 20)) and not piece.endswith(b"\n"):
        pass


_decoder = msgspec.json.Decoder(RequestLine)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def parse_line(data: bytes, urls: tuple[str, ...]) -> RequestLine:
    """A request for one of ``urls``; BadLine otherwise.  Its body is looked at when it is run."""
    if len(data) > limits.BATCH_LINE_BYTES.most:
        raise BadLine(f"the line has more than {limits.BATCH_LINE_BYTES.most} bytes", code="line_too_long")
    try:
        line = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadLine(
            f"expected a JSON object with custom_id, method, url and body: {shorten(str(error), 200)}",
            code="invalid_json_line",
        ) from error
    if not line.custom_id or len(line.custom_id) > limits.CUSTOM_ID_CHARS.most:
        raise BadLine(
            f"custom_id must have from 1 to {limits.CUSTOM_ID_CHARS.most} characters, "
            f"got {len(line.custom_id)}",
            "custom_id",
        )
    if _CONTROL.search(line.custom_id):
        raise BadLine("custom_id must not have control characters", "custom_id")
    if line.method != "POST":
        raise BadLine(f"method must be POST, got {shorten(line.method)}", "method", "invalid_method")
    if line.url not in urls:
        raise BadLine(f"url must be {' or '.join(urls)}, got {shorten(line.url)}", "url", "invalid_url")
    return line


def response_line(custom_id: str, status: int, body: bytes) -> bytes:
    """A line for the file of responses, or of errors when the status is not 200."""
    response = Response(status, f"req_{uuid.uuid4().hex}", msgspec.Raw(body))
    return _encode(ResponseLine(f"batch_req_{uuid.uuid4().hex}", custom_id, response, None))


def error_line(custom_id: str, code: str, message: str) -> bytes:
    """A line for a request that was never answered."""
    return _encode(ResponseLine(f"batch_req_{uuid.uuid4().hex}", custom_id, None, LineError(code, message)))


def _encode(line: Any) -> bytes:
    return msgspec.json.encode(line) + b"\n"
