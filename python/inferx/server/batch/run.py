"""All requests of a file: checked first, then answered, as many at once as keep the engine busy."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inferx.errors import InferxError
from inferx.server import limits_table as limits
from inferx.server.batch.lines import BadLine, Line, error_line, parse_line, request_lines, response_line
from inferx.server.batch.record import CustomIds, Record
from inferx.server.context import ServerContext

Answer = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]


@dataclass
class Checked:
    """A file that was read through.  errors: in OpenAI's shape (code, line, message, param), the first ones;
    none when it can be run."""

    ids: CustomIds
    errors: list[dict[str, Any]]


def check_file(path: Path, urls: tuple[str, ...], max_lines: int | None) -> Checked:
    """Read a file through: each line is a request for one of ``urls``, and each custom_id is new."""
    ids, errors, numbers = CustomIds(), [], array("Q")
    most = limits.BATCH_ERRORS.most
    for line in request_lines(path):
        if max_lines is not None and line.index >= max_lines:
            message = f"the file takes at most {max_lines} requests, and has more"
            errors.append(_error("too_many_requests", message, None, line.number))
            break
        try:
            ids.add(parse_line(line.data, urls).custom_id)
            numbers.append(line.number)
        except BadLine as error:
            errors.append(_error(error.code, str(error), error.param, line.number))
            if len(errors) >= most:
                break
    for index, earlier in ids.duplicates():
        if len(errors) >= most:
            break
        message = f"custom_id must be unique, and is that of line {numbers[earlier]}, too"
        errors.append(_error("duplicate_custom_id", message, "custom_id", numbers[index]))
    if not len(ids) and not errors:
        errors.append(_error("empty_file", "the file has no requests", None, None))
    return Checked(ids, sorted(errors, key=lambda error: error["line"] or 0))


def _error(code: str, message: str, param: str | None, line: int | None) -> dict[str, Any]:
    return {"code": code, "line": line, "message": message, "param": param}


def concurrency(context: ServerContext) -> int:
    """Requests to have on their way: when one ends in the engine, the next one is there already."""
    return 2 * context.engine.max_num_seqs


class BatchRun:
    """The requests of a file that are not done yet, answered in any order.

    slots: shared by all that run at once.  on_answer: called after each line written.
    """

    def __init__(
        self,
        lines: Iterable[Line],
        urls: tuple[str, ...],
        record: Record,
        answer: Answer,
        slots: asyncio.Semaphore,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self.lines = lines
        self.urls = urls
        self.record = record
        self.answer = answer
        self.slots = slots
        self.on_answer = on_answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """To the end.  When cancelled, or when something fails for good (the engine has ended, the disk is
        full), requests on their way are dropped: they have no line, and will be run again.
        """
        try:
            for line in self.lines:
                if self.record.done[line.index]:
                    continue
                await self.slots.acquire()
                task = asyncio.create_task(self._run_line(line))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
                self._check()
            while self._tasks:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                self._check()
            self._check()
        finally:
            running = list(self._tasks)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.slots.release()
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._failure = self._failure or task.exception()

    async def _run_line(self, line: Line) -> None:
        try:
            request = parse_line(line.data, self.urls)
        except BadLine as error:
            raise InferxError(f"line {line.number} has changed since it was checked: {error}") from error
        status, body = await self.answer(request.url, bytes(request.body))
        kind = "output" if status == 200 else "error"
        self.record.add(line.index, kind, response_line(request.custom_id, status, body))  # type: ignore[arg-type]
        self.on_answer()


def give_up(path: Path, urls: tuple[str, ...], record: Record, code: str, message: str) -> None:
    """Write an error for each request that is not done."""
    for line in request_lines(path):
        if not record.done[line.index]:
            custom_id = parse_line(line.data, urls).custom_id
            record.add(line.index, "error", error_line(custom_id, code, message))
