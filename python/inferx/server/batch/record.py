"""Which requests of a file are done.  The output files are the record: a line that is there is done.

A line is written by one call, whole, with its newline last.  What a killed process leaves of one ends
without a newline, and is cut off when the file is opened again; its request is run again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from inferx.errors import InferxError
from inferx.server.batch.lines import Answered
from inferx.server.errors import shorten

Kind = Literal["output", "error"]
# Of a custom_id, in memory.
_DIGEST_BYTES = 16


class CustomIds:
    """The custom_ids of a file, 16 bytes each: a file may have millions."""

    def __init__(self) -> None:
        self._digests = bytearray()

    def add(self, custom_id: str) -> None:
        self._digests += hashlib.blake2b(custom_id.encode(), digest_size=_DIGEST_BYTES).digest()

    def __len__(self) -> int:
        return len(self._digests) // _DIGEST_BYTES

    def duplicates(self) -> list[tuple[int, int]]:
        """(index, index of an earlier one that is equal), by index."""
        order, digests = self._sorted()
        equal = np.flatnonzero(digests[order[1:]] == digests[order[:-1]])
        # Equal ones lie in the order of the file: the sort is stable.
        return sorted((int(order[i + 1]), int(order[i])) for i in equal)

    def find(self, other: CustomIds) -> np.ndarray:
        """For each of ``other`` its index here, -1 when it is not here."""
        order, digests = self._sorted()
        wanted = other._array()
        if not len(order) or not len(wanted):
            return np.full(len(wanted), -1)
        places = np.minimum(np.searchsorted(digests[order], wanted), len(order) - 1)
        found = order[places]
        return np.where(digests[found] == wanted, found, -1)

    def _array(self) -> np.ndarray:
        # Of fixed width; trailing zero bytes do not make two of them equal that are not.
        return np.frombuffer(bytes(self._digests), f"S{_DIGEST_BYTES}")

    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        digests = self._array()
        return np.argsort(digests, kind="stable"), digests


class OutputFile:
    """A file of responses that is only appended to, by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open it, cut off a torn last line.  InferxError when another process has it open."""
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise InferxError(f"{path}: another process is writing this file") from error
        self.num_cut = self._repair()

    def _repair(self) -> int:
        """Bytes of a torn line that were cut off."""
        end = size = os.fstat(self._file).st_size
        while end > 0:
            start = max(0, end - (1 << 16))
            newline = os.pread(self._file, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._file, end)
        return size - end

    def custom_ids(self) -> Iterator[str]:
        """Of all lines.  InferxError naming the first that is no response."""
        with self.path.open("rb") as file:
            for number, data in enumerate(file, 1):
                try:
                    yield _decoder.decode(data).custom_id
                except (msgspec.MsgspecError, UnicodeError) as error:
                    raise InferxError(
                        f"{self.path}, line {number}: expected a response of a batch: "
                        f"{shorten(str(error), 200)}"
                    ) from error

    def write(self, line: bytes) -> None:
        view = memoryview(line)
        while view:  # a full disk takes a part, then raises
            view = view[os.write(self._file, view) :]

    def sync(self) -> None:
        os.fsync(self._file)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)


_decoder = msgspec.json.Decoder(Answered)


class Record:
    """The two files of a batch, and what is done.

    done: one byte for each request of the input, by index.
    """

    def __init__(self, output: Path, errors: Path, ids: CustomIds) -> None:
        """Open the files and read what is in them.  InferxError when they are not of this input."""
        self.done = bytearray(len(ids))
        self.completed = self.failed = 0
        self._files: dict[Kind, OutputFile] = {}
        try:
            self._files["output"] = OutputFile(output)
            self._files["error"] = OutputFile(errors)
            self.completed = self._read("output", ids)
            self.failed = self._read("error", ids)
        except BaseException:
            self.close()
            raise

    def _read(self, kind: Kind, ids: CustomIds) -> int:
        known = CustomIds()
        file = self._files[kind]
        for custom_id in file.custom_ids():
            known.add(custom_id)
        places = ids.find(known)
        unknown = np.flatnonzero(places < 0)
        if len(unknown):
            raise InferxError(
                f"{file.path}, line {int(unknown[0]) + 1}: the input has no such custom_id; "
                "this file belongs to another batch"
            )
        for place in places:
            if self.done[place]:
                raise InferxError(f"{file.path}: a custom_id is answered twice, that of request {place + 1}")
            self.done[place] = 1
        return len(known)

    @property
    def total(self) -> int:
        return len(self.done)

    @property
    def num_done(self) -> int:
        return self.completed + self.failed

    @property
    def num_cut(self) -> int:
        """Bytes of torn lines that were cut off."""
        return sum(file.num_cut for file in self._files.values())

    def add(self, index: int, kind: Kind, line: bytes) -> None:
        """Request ``index`` has been answered."""
        if self.done[index]:
            raise RuntimeError(f"request {index} is answered twice")
        self._files[kind].write(line)
        self.done[index] = 1
        if kind == "output":
            self.completed += 1
        else:
            self.failed += 1

    def sync(self) -> None:
        for file in self._files.values():
            file.sync()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}
