"""Clients of the soak that do not behave: plain sockets, because HTTP libraries are too polite."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

Rude = Callable[[str, str, dict[str, Any], random.Random], Awaitable[None]]


def _raw(path: str, body: dict[str, Any]) -> tuple[bytes, bytes]:
    """(head, body) of a POST that closes the connection after its answer."""
    data = json.dumps(body).encode()
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: soak",
        "Content-Type: application/json",
        "Connection: close",
        f"Content-Length: {len(data)}",
    )
    return "\r\n".join((*lines, "", "")).encode(), data


async def _connect(url: str, receive_buffer: int | None = None) -> tuple[Any, Any]:
    address = urlsplit(url)
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (address.hostname, address.port))
    return await asyncio.open_connection(sock=sock)


async def _leave(writer: asyncio.StreamWriter, rng: random.Random) -> None:
    """Close, in half of the cases with a reset."""
    if rng.random() < 0.5:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


async def leave_before_headers(url: str, path: str, body: dict[str, Any], rng: random.Random) -> None:
    _, writer = await _connect(url)
    head, _ = _raw(path, body)
    writer.write(head[: rng.randrange(len(head))])
    await asyncio.sleep(rng.random() * 0.2)
    await _leave(writer, rng)


async def leave_within_body(url: str, path: str, body: dict[str, Any], rng: random.Random) -> None:
    _, writer = await _connect(url)
    head, data = _raw(path, body)
    writer.write(head + data[: rng.randrange(len(data))])
    await asyncio.sleep(rng.random() * 0.2)
    await _leave(writer, rng)


async def leave_at_once(url: str, path: str, body: dict[str, Any], rng: random.Random) -> None:
    """The whole request, and gone before anyone could read it."""
    _, writer = await _connect(url)
    writer.write(b"".join(_raw(path, {**body, "stream": rng.random() < 0.5})))
    await asyncio.sleep(rng.random() * 0.02)
    await _leave(writer, rng)


async def send_garbage(url: str, path: str, body: dict[str, Any], rng: random.Random) -> None:
    reader, writer = await _connect(url)
    writer.write(rng.randbytes(rng.randrange(1, 2000)) + b"\r\n\r\n")
    with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
        await asyncio.wait_for(reader.read(), 5)
    await _leave(writer, rng)


RUDE: dict[str, Rude] = {
    "left before headers": leave_before_headers,
    "left within the body": leave_within_body,
    "left at once": leave_at_once,
    "garbage": send_garbage,
}


async def read_slowly(url: str, path: str, body: dict[str, Any], rng: random.Random) -> str | None:
    """The whole answer through a small buffer with pauses; None when it was refused with 429."""
    reader, writer = await _connect(url, receive_buffer=1024)
    try:
        writer.write(b"".join(_raw(path, body)))
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(None, 2)[1])
        raw = b""
        while part := await reader.read(rng.randrange(16, 2048)):
            raw += part
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.1)
    finally:
        writer.close()
    if status == 429:
        return None
    if status != 200:
        raise RuntimeError(f"status {status} to a slow reader: {raw[:300]!r}")
    return (_dechunk(raw) if b"chunked" in head.lower() else raw).decode()


def _dechunk(raw: bytes) -> bytes:
    result = b""
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        count = int(size, 16)
        if count == 0:
            return result
        result, raw = result + raw[:count], raw[count + 2 :]
    raise RuntimeError("the answer ended before its last chunk")
