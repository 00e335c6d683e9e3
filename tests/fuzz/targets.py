"""What is fuzzed: each target takes bytes, may raise nothing but what its docstring names, and has seeds.

A target is a function ``(data: bytes) -> None``; anything it raises is a finding.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inferx.errors import LoadError
from inferx.loader.gguf_file import GGUFFile
from inferx.loader.safetensors_file import DTYPES, SafetensorsFile
from inferx.server.tools.events import CallArguments, CallEnd, CallStart, Content, Event, merged
from inferx.server.tools.forced import NamedParser, RequiredParser
from inferx.server.tools.registry import FORMATS, MARKS, make_parser

Target = Callable[[bytes], None]


class _Scratch:
    """One file, written anew for every input; in memory where the machine has such a place."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.path = Path(self._directory.name) / "input"

    def holding(self, data: bytes) -> Path:
        self.path.write_bytes(data)
        return self.path


# ---- GGUF ---------------------------------------------------------------------------------------


def gguf_target() -> Target:
    """The reader of GGUF headers and what it then hands out.  LoadError."""
    scratch = _Scratch()

    def run(data: bytes) -> None:
        try:
            file = GGUFFile(scratch.holding(data))
        except LoadError:
            return
        try:
            for name, tensor in file.tensors.items():
                assert 0 <= tensor.offset <= tensor.offset + tensor.nbytes <= len(data)
                values = file.read(name)
                assert values.nbytes == tensor.nbytes
                values.flatten()[-1:].sum()  # touches the last page
            for value in file.metadata.values():
                assert isinstance(value, (int, float, str, list)) or len(value) <= len(data)
        finally:
            values = None
            file.close()

    return run


def gguf_seeds() -> list[bytes]:
    """Small files with every value type, and two tensors."""

    def text(value: str) -> bytes:
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    def entry(key: str, kind: int, value: bytes) -> bytes:
        return text(key) + struct.pack("<I", kind) + value

    def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
        dims = struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape)
        return text(name) + dims + struct.pack("<IQ", kind, offset)

    scalars = {
        0: "<B",
        1: "<b",
        2: "<H",
        3: "<h",
        4: "<I",
        5: "<i",
        6: "<f",
        7: "<?",
        10: "<Q",
        11: "<q",
        12: "<d",
    }
    entries = [entry(f"k{kind}", kind, struct.pack(layout, 1)) for kind, layout in scalars.items()]
    arrays = [
        entry(f"a{kind}", 9, struct.pack("<IQ", kind, 3) + struct.pack(layout, 1) * 3)
        for kind, layout in scalars.items()
    ]
    words = struct.pack("<IQ", 8, 3) + text("a") + text("") + text("é")
    strings = [entry("general.architecture", 8, text("llama")), entry("tokens", 9, words)]
    aligned = [entry("general.alignment", 4, struct.pack("<I", 64))]
    tensors = [tensor("x", (4, 2), 0, 0), tensor("y", (32, 2), 8, 64), tensor("z", (3,), 1, 192)]

    def file(
        version: int, metadata: list[bytes], infos: list[bytes], data: int, alignment: int = 32
    ) -> bytes:
        head = b"GGUF" + struct.pack("<IQQ", version, len(infos), len(metadata))
        head += b"".join(metadata) + b"".join(infos)
        return head + bytes(-len(head) % alignment) + bytes(data)

    return [
        file(3, [], [], 0),
        file(2, strings, tensors[:1], 64),
        file(3, entries + strings, tensors, 224),
        file(3, arrays + aligned, tensors, 224, 64),
        file(3, strings, [tensor("w", (256, 2, 2, 2), 14, 0)], 8 * 210),
    ]


# ---- safetensors ---------------------------------------------------------------------------------


def safetensors_target() -> Target:
    """The reader of safetensors headers.  LoadError.

    An odd first byte lets the harness write the length in front of the header, so that the fuzzer gets to
    the JSON behind it.
    """
    scratch = _Scratch()

    def run(data: bytes) -> None:
        if data and data[0] % 2:
            header, _, rest = data[1:].partition(b"\0")
            data = len(header).to_bytes(8, "little") + header + rest
        try:
            file = SafetensorsFile(scratch.holding(data))
        except LoadError:
            return
        for name, tensor in file.tensors.items():
            assert 8 <= tensor.begin <= tensor.end <= len(data)
            try:
                values = file.read(name)
            except LoadError:
                assert tensor.dtype not in DTYPES
                continue
            assert values.nbytes == tensor.end - tensor.begin
            values.flatten()[-1:].sum()
            values = None
        file.close()

    return run


def safetensors_seeds() -> list[bytes]:
    headers: list[tuple[dict[str, Any], int]] = [
        ({}, 0),
        (
            {
                "__metadata__": {"format": "pt"},
                "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            },
            24,
        ),
        (
            {
                "a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]},
                "b": {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [8, 12]},
                "c": {"dtype": "I64", "shape": [], "data_offsets": [12, 20]},
                "d": {"dtype": "F16", "shape": [0, 5], "data_offsets": [20, 20]},
            },
            20,
        ),
    ]
    seeds = []
    for header, size in headers:
        raw = json.dumps(header).encode()
        seeds += [len(raw).to_bytes(8, "little") + raw + bytes(size), b"\x01" + raw + b"\0" + bytes(size)]
    deep = b'{"a":' + b"[" * 3500 + b"]" * 3500 + b"}"
    return [*seeds, b"\x01" + deep, b'\x01{"a": 1e999, "b": NaN, "a": -0}', b"version https://git-lfs"]


# ---- tool calls ---------------------------------------------------------------------------------

NAMES = frozenset(("f", "get_weather"))
KINDS = (*FORMATS, "required", "named")


def _parse(kind: str, hidden: bool, pieces: list[str]) -> list[Event]:
    if kind == "required":
        parser: Any = RequiredParser()
    elif kind == "named":
        parser = NamedParser("f")
    else:
        parser = make_parser(kind, NAMES, frozenset(MARKS[kind]) if hidden else frozenset())
    events = [event for piece in pieces for event in parser.push(piece)]
    return merged(events + parser.finish())


def _check_calls(kind: str, events: list[Event]) -> None:
    """Starts, arguments and ends in order; complete arguments are one JSON object.  What turns out to be no
    JSON goes on as content, or as the next call where that begins.  (An answer that a grammar forces into
    one function's arguments is passed on as it is.)"""
    open_call, arguments = False, ""
    for event in events:
        if isinstance(event, CallStart):
            assert event.name
            open_call, arguments = True, ""
        elif isinstance(event, CallArguments):
            assert open_call
            arguments += event.text
        elif isinstance(event, CallEnd):
            assert open_call
            assert kind == "named" or isinstance(json.loads(arguments), dict), arguments
            open_call = False
        else:
            assert isinstance(event, Content)
            assert event.text
            open_call = False


def tool_calls_target() -> Target:
    """The parsers of tool calls.  Nothing is raised, and the events are the same however the text is cut.

    The first byte chooses the format and whether its marks are special tokens, the second how the text is
    cut; the rest is the text.
    """

    def run(data: bytes) -> None:
        if len(data) < 2:
            return
        kind, hidden = KINDS[data[0] % len(KINDS)], data[0] >= 128
        text = data[2:].decode("utf-8", "replace")
        whole = _parse(kind, hidden, [text])
        _check_calls(kind, whole)
        size = data[1] % 13 + 1
        for pieces in ([text[i : i + size] for i in range(0, len(text), size)], list(text)):
            cut = _parse(kind, hidden, pieces)
            assert cut == whole, (kind, hidden, pieces, cut, whole)

    return run


def tool_calls_seeds() -> list[bytes]:
    call = '{"name": "f", "arguments": {"a": [1, -2.5e3, null, "\\u00e9\\"}"]}}'
    texts = {
        "hermes": [f"Hm. <tool_call>\n{call}\n</tool_call> so", f"<tool_call>[{call}, {call}]</tool_call>"],
        "llama3": [call.replace("arguments", "parameters"), f"<|python_tag|>{call}; {call}"],
        "mistral": [f"[TOOL_CALLS] [{call}]", '[TOOL_CALLS]f[ARGS]{"a": {}}[TOOL_CALLS]g[CALL_ID]x[ARGS]{}'],
        "required": [f"[{call}]", '[{"name": "f", "parameters": {}}]'],
        "named": ['{"a": {"b": "}"}}', '{"x": 1'],
    }
    head = {kind: number for number, kind in enumerate(KINDS)}
    deep = '<tool_call>{"name":"f","arguments":' + '{"a":' * 180
    seeds = [
        bytes([head[kind] + extra, 4]) + text.encode()
        for kind, all_ in texts.items()
        for text in all_
        for extra in (0, 125 + 5)
    ]
    return [*seeds, bytes([head["hermes"], 9]) + deep.encode()]


TARGETS: dict[str, tuple[Callable[[], Target], Callable[[], list[bytes]]]] = {
    "gguf": (gguf_target, gguf_seeds),
    "safetensors": (safetensors_target, safetensors_seeds),
    "tool_calls": (tool_calls_target, tool_calls_seeds),
}

# Bytes of an input.  Parsers of tool calls take a text three times, once a character at a time.
LONGEST = {"gguf": 4096, "safetensors": 8192, "tool_calls": 1024}
