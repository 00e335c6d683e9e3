"""The files and batches of a server, in a directory that survives it.

``batches.sqlite3`` knows them; ``files/ID`` holds the bytes.  An id is made here and looked up there before
it becomes part of a path.  A change is on the disk (SQLite's write-ahead log) when the call returns.  One
process at a time has a directory.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
import uuid
from pathlib import Path
from typing import Any, Literal

import msgspec

from inferx.errors import InferxError

Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
FINAL: frozenset[Status] = frozenset(("failed", "completed", "expired", "cancelled"))

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE NOT NULL, purpose TEXT NOT NULL, data BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT UNIQUE NOT NULL, final INTEGER NOT NULL, data BLOB NOT NULL
);
"""


class StoredFile(msgspec.Struct, kw_only=True):
    """A file as the API shows it."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: str
    object: str = "file"
    status: str = "processed"
    expires_at: int | None = None
    status_details: str | None = None


class RequestCounts(msgspec.Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, kw_only=True):
    """A batch as the API shows it, and in ``output_id`` and ``errors_id`` the files being written, which
    become the output's and the errors' when there is something in them."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    output_id: str
    errors_id: str
    object: str = "batch"
    status: Status = "validating"
    errors: dict[str, Any] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    metadata: dict[str, str] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The API's object."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        del fields["output_id"], fields["errors_id"]
        return fields

    def enter(self, status: Status) -> None:
        """The next state, now."""
        self.status = status
        setattr(self, f"{status}_at", int(time.time()))


_files = msgspec.json.Decoder(StoredFile)
_batches = msgspec.json.Decoder(Batch)


def new_file_id() -> str:
    return f"file-{uuid.uuid4().hex}"


class BatchStore:
    """See the module's docstring.  Not for several threads at once."""

    def __init__(self, directory: Path) -> None:
        """Open or create it.  InferxError when it is another process's, or cannot be used."""
        try:
            (directory / "files").mkdir(parents=True, exist_ok=True)
            self._lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InferxError(f"--batch-dir {directory}: {error}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise InferxError(f"--batch-dir {directory}: another server is using this directory") from error
        self._directory = directory / "files"
        self._db = sqlite3.connect(
            directory / "batches.sqlite3", isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)
        self._remove_strays()

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def _remove_strays(self) -> None:
        """Files that nothing knows: uploads that were cut off, deletions that were not finished."""
        known = {row[0] for row in self._db.execute("SELECT id FROM files")}
        for batch in self.unfinished():
            known |= {batch.output_id, batch.errors_id}
        for path in self._directory.iterdir():
            if path.name not in known:
                path.unlink()

    # Files

    def path(self, file_id: str) -> Path:
        """Where the bytes of an id are that this store has made."""
        return self._directory / file_id

    def add_file(self, file_id: str, filename: str, purpose: str) -> StoredFile:
        """Make the bytes that lie at ``path(file_id)`` a file."""
        stored = StoredFile(
            id=file_id,
            bytes=self.path(file_id).stat().st_size,
            created_at=int(time.time()),
            filename=filename,
            purpose=purpose,
        )
        self._db.execute(
            "INSERT INTO files (id, purpose, data) VALUES (?, ?, ?)",
            (file_id, purpose, msgspec.json.encode(stored)),
        )
        return stored

    def file(self, file_id: str) -> StoredFile | None:
        row = self._db.execute("SELECT data FROM files WHERE id = ?", (file_id,)).fetchone()
        return None if row is None else _files.decode(row[0])

    def count_files(self, purpose: str) -> int:
        count: int = self._db.execute("SELECT count(*) FROM files WHERE purpose = ?", (purpose,)).fetchone()[
            0
        ]
        return count

    def count_bytes(self) -> int:
        """Of all files, also of those that are being written."""
        return sum(path.stat().st_size for path in self._directory.iterdir())

    def list_files(
        self, limit: int, after: str | None, purpose: str | None, ascending: bool
    ) -> list[StoredFile]:
        rows = self._page(
            "files", limit, after, ascending, "AND (? IS NULL OR purpose = ?)", (purpose, purpose)
        )
        return [_files.decode(data) for data in rows]

    def delete_file(self, file_id: str) -> None:
        self._db.execute("DELETE FROM files WHERE id = ?", (file_id,))
        self.path(file_id).unlink(missing_ok=True)

    # Batches

    def add_batch(self, batch: Batch, most: int) -> None:
        """Keep it; of more than ``most`` the oldest that are at their end are forgotten."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO batches (id, final, data) VALUES (?, 0, ?)",
                (batch.id, msgspec.json.encode(batch)),
            )
            excess = self._db.execute("SELECT count(*) FROM batches").fetchone()[0] - most
            if excess > 0:
                self._db.execute(
                    "DELETE FROM batches WHERE number IN "
                    "(SELECT number FROM batches WHERE final = 1 ORDER BY number LIMIT ?)",
                    (excess,),
                )

    def save_batch(self, batch: Batch) -> None:
        self._db.execute(
            "UPDATE batches SET final = ?, data = ? WHERE id = ?",
            (batch.status in FINAL, msgspec.json.encode(batch), batch.id),
        )

    def end_batch(self, batch: Batch, status: Status) -> None:
        """Its last state; what was written becomes its files, at once with it."""
        batch.enter(status)
        with self._transaction():
            for attribute, file_id, kind in (
                ("output_file_id", batch.output_id, "output"),
                ("error_file_id", batch.errors_id, "error"),
            ):
                path = self.path(file_id)
                if path.exists() and path.stat().st_size:
                    self.add_file(file_id, f"{batch.id}_{kind}.jsonl", "batch_output")
                    setattr(batch, attribute, file_id)
                else:
                    path.unlink(missing_ok=True)
            self.save_batch(batch)

    def batch(self, batch_id: str) -> Batch | None:
        row = self._db.execute("SELECT data FROM batches WHERE id = ?", (batch_id,)).fetchone()
        return None if row is None else _batches.decode(row[0])

    def list_batches(self, limit: int, after: str | None) -> list[Batch]:
        return [_batches.decode(data) for data in self._page("batches", limit, after, False)]

    def unfinished(self) -> list[Batch]:
        """In the order they were created."""
        rows = self._db.execute("SELECT data FROM batches WHERE final = 0 ORDER BY number")
        return [_batches.decode(row[0]) for row in rows]

    def _page(
        self,
        table: str,
        limit: int,
        after: str | None,
        ascending: bool,
        more: str = "",
        values: tuple[Any, ...] = (),
    ) -> list[bytes]:
        """At most ``limit`` rows behind the one of id ``after``; none when there is no such one."""
        direction, sign = ("ASC", ">") if ascending else ("DESC", "<")
        where = f"? IS NULL OR number {sign} (SELECT number FROM {table} WHERE id = ?)"
        rows = self._db.execute(
            f"SELECT data FROM {table} WHERE ({where}) {more} ORDER BY number {direction} LIMIT ?",
            (after, after, *values, limit),
        )
        return [row[0] for row in rows]

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)


class _Transaction:
    """All or nothing."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")
