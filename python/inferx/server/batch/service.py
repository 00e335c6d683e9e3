"""The server's batches, running: some at once, behind everything interactive.

What is stored tells where each of them is, so a server that was killed goes on where the last one stood:
states are in the store, answered requests in the files being written.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from pathlib import Path
from typing import Any

from inferx.errors import InferxError
from inferx.server import limits_table as limits
from inferx.server.batch.answer import EngineGoneError, answer
from inferx.server.batch.lines import request_lines
from inferx.server.batch.record import OutputFile, Record
from inferx.server.batch.run import BatchRun, Checked, check_file, concurrency, give_up
from inferx.server.batch.store import FINAL, Batch, BatchStore, RequestCounts, new_file_id
from inferx.server.context import ServerContext
from inferx.server.errors import ApiError
from inferx.server.generation import in_background

logger = logging.getLogger("inferx.server")

# Batches that run at once: when the last requests of one leave places empty, the next one has them.
RUNNING_BATCHES = 3
WINDOW_SECONDS = 24 * 3600
EXPIRED = "This request could not be executed before the completion window expired."


class BatchService:
    """One per server; all methods are for its event loop."""

    def __init__(self, context: ServerContext, directory: Path) -> None:
        """InferxError when the directory cannot be used."""
        self.context = context
        self.store = BatchStore(directory)
        self._turns = asyncio.Semaphore(RUNNING_BATCHES)
        self._slots = asyncio.Semaphore(concurrency(context))
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._batches: dict[str, Batch] = {}  # unfinished ones, as they are now
        self._work: dict[str, asyncio.Future[Any]] = {}  # what a cancellation interrupts
        self._records: dict[str, Record] = {}
        context.lifecycle.on_drain(self.stop)
        for batch in self.store.unfinished():
            self._start(batch)

    async def stop(self) -> None:
        """Put everything down; another service on the directory goes on with it."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Requests of clients

    def create(self, endpoint: str, input_file_id: str, metadata: dict[str, str] | None) -> Batch:
        if len(self._batches) >= limits.UNFINISHED_BATCHES.most:
            raise ApiError(
                429,
                f"{limits.UNFINISHED_BATCHES.most} batches are not finished yet; wait for one to end",
                type="rate_limit_error",
                code="too_many_batches",
                retry_after=60,
            )
        now = int(time.time())
        batch = Batch(
            id=f"batch_{uuid.uuid4().hex}",
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window="24h",
            created_at=now,
            expires_at=now + WINDOW_SECONDS,
            output_id=new_file_id(),
            errors_id=new_file_id(),
            metadata=metadata,
        )
        self.store.add_batch(batch, limits.BATCHES.most)
        self._start(batch)
        return batch

    def batch(self, batch_id: str) -> Batch | None:
        """As it is now."""
        batch = self._batches.get(batch_id)
        if batch is None:
            return self.store.batch(batch_id)
        self._count(batch)
        return batch

    def list_batches(self, limit: int, after: str | None) -> list[Batch]:
        return [self.batch(batch.id) or batch for batch in self.store.list_batches(limit, after)]

    def cancel(self, batch: Batch) -> Batch:
        """Requests that are answered keep their answers.  409 when the batch is at its end."""
        if batch.status not in ("validating", "in_progress", "cancelling"):
            raise ApiError(
                409, f"a batch that is {batch.status} cannot be cancelled", code="batch_not_cancellable"
            )
        if batch.status != "cancelling":
            batch.enter("cancelling")
            self.store.save_batch(batch)
            work = self._work.get(batch.id)
            if work is not None:
                work.cancel()
        return batch

    def uses(self, file_id: str) -> Batch | None:
        """An unfinished batch that reads this file."""
        return next((b for b in self._batches.values() if b.input_file_id == file_id), None)

    # Running

    def _start(self, batch: Batch) -> None:
        self._batches[batch.id] = batch
        task = asyncio.create_task(self._run(batch))
        self._tasks[batch.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(batch.id, None))

    async def _run(self, batch: Batch) -> None:
        """From whatever state it is in to its end."""
        in_background.set(True)
        try:
            await self._interruptible(batch, self._turns.acquire())
        except _CancelledBatch:
            await asyncio.to_thread(self._recount, batch)
            self._end(batch, "cancelled")
            return
        try:
            await self._run_now(batch)
        except EngineGoneError as error:
            logger.warning("batch %s is put down: %s", batch.id, error)
        except Exception as error:
            logger.exception("batch %s failed", batch.id)
            known = isinstance(error, (InferxError, OSError))
            message = str(error) if known else "the server failed to run this batch"
            self._fail(batch, [{"code": "server_error", "line": None, "message": message, "param": None}])
        finally:
            self._turns.release()
            record = self._records.pop(batch.id, None)
            if record is not None:
                record.close()

    async def _run_now(self, batch: Batch) -> None:
        path, urls = self.store.path(batch.input_file_id), (batch.endpoint,)
        try:
            checked: Checked = await self._interruptible(
                batch, asyncio.to_thread(check_file, path, urls, limits.BATCH_LINES.most)
            )
            if checked.errors:
                self._fail(batch, checked.errors)
                return
            record = await asyncio.to_thread(
                Record, self.store.path(batch.output_id), self.store.path(batch.errors_id), checked.ids
            )
            self._records[batch.id] = record
            if batch.status == "validating":
                batch.enter("in_progress")
            self._count(batch)
            self.store.save_batch(batch)
            run = BatchRun(request_lines(path), urls, record, self._answer, self._slots)
            left = batch.expires_at - time.time()
            expired = False
            try:
                await self._interruptible(batch, asyncio.wait_for(run.run(), left))
            except asyncio.TimeoutError:
                expired = True
                await asyncio.to_thread(give_up, path, urls, record, "batch_expired", EXPIRED)
            if not expired:
                batch.enter("finalizing")
                self.store.save_batch(batch)
            await asyncio.to_thread(record.sync)
            self._end(batch, "expired" if expired else "completed")
        except _CancelledBatch:
            if batch.id not in self._records:
                await asyncio.to_thread(self._recount, batch)
            self._end(batch, "cancelled")

    async def _answer(self, url: str, body: bytes) -> tuple[int, bytes]:
        return await answer(self.context, url, body)

    async def _interruptible(self, batch: Batch, work: Any) -> Any:
        """The result of ``work``; _CancelledBatch when the batch is being cancelled, before or meanwhile."""
        future = asyncio.ensure_future(work)
        self._work[batch.id] = future
        if batch.status == "cancelling":
            future.cancel()
        try:
            return await future
        except asyncio.CancelledError:
            if batch.status != "cancelling" or not future.cancelled():
                raise  # the service stops
            raise _CancelledBatch from None
        finally:
            del self._work[batch.id]
            if not future.done():
                future.cancel()
                await asyncio.gather(future, return_exceptions=True)

    def _count(self, batch: Batch) -> None:
        record = self._records.get(batch.id)
        if record is not None:
            batch.request_counts = RequestCounts(record.total, record.completed, record.failed)

    def _recount(self, batch: Batch) -> None:
        """Of a batch that ends before its record was opened: a server that was killed may have left a torn
        line."""
        counts = batch.request_counts
        for attribute, file_id in (("completed", batch.output_id), ("failed", batch.errors_id)):
            file = OutputFile(self.store.path(file_id))
            try:
                setattr(counts, attribute, sum(1 for _ in file.custom_ids()))
            finally:
                file.close()

    def _fail(self, batch: Batch, errors: list[dict[str, Any]]) -> None:
        batch.errors = {"object": "list", "data": errors}
        self._end(batch, "failed")

    def _end(self, batch: Batch, status: Any) -> None:
        assert status in FINAL
        self._count(batch)
        self.store.end_batch(batch, status)
        self._batches.pop(batch.id, None)


class _CancelledBatch(Exception):
    """The batch, not the service."""


class _Holder:
    service: BatchService | None = None


def batch_service(context: ServerContext) -> BatchService:
    """The server's, started when first asked for; 404 when it has none."""
    directory = context.args.batch_dir
    if directory is None:
        raise ApiError(
            404,
            "this server keeps no files and batches; start it with --batch-dir DIRECTORY",
            code="batches_not_enabled",
        )
    holder = context.part(_Holder)
    if holder.service is None:
        holder.service = BatchService(context, Path(directory))
    return holder.service


def start_batches(context: ServerContext) -> None:
    """Go on with what the last server left, if this one keeps batches.  InferxError as BatchService."""
    if context.args.batch_dir is not None:
        batch_service(context)
