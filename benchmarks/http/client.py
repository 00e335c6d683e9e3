"""The work over HTTP: one connection a stream, raw sockets and epoll, so that it costs little itself.

One JSON line in, one out.  While it runs it only keeps what comes; it is looked at afterwards.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from typing import Any

END = b"0\r\n\r\n"
ROOM = 1 << 16


def request_bytes(order: dict[str, Any], prompt: list[int], stream: bool) -> bytes:
    fields: dict[str, Any] = {
        "prompt": prompt, "max_tokens": order["new_tokens"], "temperature": 0, "ignore_eos": True,
        "stream": stream,
    }  # fmt: skip
    if stream:
        fields["stream_options"] = {"include_usage": True}
    body = json.dumps(fields).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"content-type: application/json\r\n\r\n" + body


def run(port: int, order: dict[str, Any]) -> dict[str, Any]:
    requests = [request_bytes(order, prompt, order["stream"]) for prompt in order["prompts"]]
    started, cpu = time.perf_counter(), time.process_time()
    poller = select.epoll()
    sockets: dict[int, socket.socket] = {}
    parts: dict[int, list[bytes]] = {}
    for data in requests:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(data)
        connection.setblocking(False)
        sockets[connection.fileno()] = connection
        parts[connection.fileno()] = []
        poller.register(connection.fileno(), select.EPOLLIN)
    first = 0.0
    running = len(sockets)
    while running:
        for fd, _ in poller.poll():
            data = sockets[fd].recv(ROOM)
            parts[fd].append(data)
            first = first or time.perf_counter() - started
            # Whole answers say how long they are; of these the last piece is what ends the JSON.
            if not data or data.endswith(END) or (not order["stream"] and data.endswith(b"}")):
                poller.unregister(fd)
                running -= 1
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    for connection in sockets.values():
        connection.close()
    return {"seconds": seconds, "cpu_seconds": cpu, "first": first, **look_at(list(parts.values()), order)}


def look_at(answers: list[list[bytes]], order: dict[str, Any]) -> dict[str, Any]:
    """Counts of all answers, and their texts."""
    chunks, tokens, texts = 0, 0, []
    for pieces in answers:
        raw = b"".join(pieces)
        head, _, body = raw.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(raw[:500].decode(errors="replace"))
        if order["stream"]:
            events = _events(body)
            chunks += sum(bool(e["choices"]) for e in events)
            texts.append("".join(e["choices"][0]["text"] for e in events if e["choices"]))
            tokens += events[-1]["usage"]["completion_tokens"]
        else:
            answer = json.loads(body)
            texts.append(answer["choices"][0]["text"])
            tokens += answer["usage"]["completion_tokens"]
    return {"chunks": chunks, "tokens": tokens, "texts": texts if order.get("texts") else None}


def _events(body: bytes) -> list[dict[str, Any]]:
    data = bytearray()
    while body:  # chunked transfer coding
        size, _, rest = body.partition(b"\r\n")
        data += rest[: int(size, 16)]
        body = rest[int(size, 16) + 2 :]
    lines = bytes(data).split(b"\n\n")
    events = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
    if events.pop() != b"[DONE]":
        raise RuntimeError("a stream did not end with [DONE]")
    return [json.loads(event) for event in events]


def main() -> None:
    port = int(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(run(port, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
