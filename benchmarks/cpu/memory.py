"""Resident memory of this process, in bytes."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_FIELDS = {"VmRSS": "resident", "VmHWM": "peak", "RssAnon": "anonymous", "RssFile": "file"}
# Resident memory may be this many times the model's file, beside the KV pool.
FILE_FACTOR = 1.25


def memory(status: Path = Path("/proc/self/status")) -> dict[str, float]:
    """resident and its highest value so far (peak); the parts of it that are nobody's file (anonymous) and
    that are pages of files (file)."""
    found = {}
    for line in status.read_text().splitlines():
        name, _, value = line.partition(":")
        if name in _FIELDS:
            found[_FIELDS[name]] = int(value.split()[0]) * 1024.0
    return found


def resident_bytes(ranges: Iterable[tuple[int, int]], pagemap: Path = Path("/proc/self/pagemap")) -> int:
    """How much of these ranges of this process's memory (first address, bytes) has pages: a KV pool is
    reserved whole and taken page by page."""
    page = os.sysconf("SC_PAGESIZE")
    total = 0
    with pagemap.open("rb", buffering=0) as file:
        for start, length in ranges:
            first, end = start // page, -(-(start + length) // page)
            file.seek(first * 8)
            entries = array("Q")
            entries.frombytes(file.read((end - first) * 8))
            total += sum(entry >> 63 for entry in entries) * page
    return total


def growth(record: Mapping[str, Any]) -> dict[str, float | None]:
    """What the engine added to a process that had imported everything: after the load, at the end, at most.

    without_kv: at the end, less the pages of the KV pool that were in use; allowed: what that may be, 1.25
    times the file (None for a model that is not one file).
    """
    base = record["after_imports"]["resident"]
    size = record["file_bytes"]
    end = record["at_end"]["resident"] - base
    return {
        "after_load": record["after_load"]["resident"] - base if record["after_load"] else None,
        "end": end,
        "peak": record["at_end"]["peak"] - base,
        "without_kv": end - record["kv_resident_bytes"],
        "allowed": None if size is None else FILE_FACTOR * size,
    }
