"""Imported by every Python process whose PYTHONPATH names this directory: writes down each look-up of a
name and each connection, by Python's audit events, into the file INFERX_TEST_NETWORK_LOG."""

from __future__ import annotations

import json
import os
import sys

_EVENTS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg")
_log = os.environ.get("INFERX_TEST_NETWORK_LOG")


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in _EVENTS:
        address = arguments[1] if event.startswith(("socket.connect", "socket.send")) else arguments[0]
        line = json.dumps([event, sys.argv[:1], repr(address)]) + "\n"
        descriptor = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())
        os.close(descriptor)


if _log:
    sys.addaudithook(_note)
