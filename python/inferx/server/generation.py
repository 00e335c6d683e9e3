"""Running a response's prompts on the engine and merging what they yield."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

from inferx.engine.protocol import BACKGROUND_PRIORITY
from inferx.outputs import RequestOutput
from inferx.pooling_params import PoolingParams
from inferx.sampling_params import SamplingParams
from inferx.server.engine_api import AsyncEngine
from inferx.server.metrics import ServerMetrics

# Set while a batch's requests are answered: they fill what interactive ones leave.
in_background: ContextVar[bool] = ContextVar("in_background", default=False)


@dataclass
class Job:
    """One prompt of a response.  ``text`` is the prompt as the caller gave it, if it was text.  ``pooling``:
    an embedding is wanted."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    text: str | None = None
    priority: int = 0
    cache_salt: str | None = None
    arrival_time: float | None = None
    pooling: PoolingParams | None = None


class OutputStream:
    """The outputs of all jobs as they come: ``(job number, delta)``.

    ``wait_first`` looks at the first one ahead of time, so that an error that comes before any output is
    an HTTP status and not an event in a stream.  ``aclose`` aborts whatever still runs.
    """

    def __init__(self, engine: AsyncEngine, jobs: list[Job], metrics: ServerMetrics) -> None:
        self._source = _merge([metrics.observe(_start(engine, job), job) for job in jobs])
        self._first: asyncio.Task[tuple[int, RequestOutput]] | None = None

    async def wait_first(self, timeout: float | None) -> bool:
        """True once the first output is there; raises the error that came instead."""
        if self._first is None:
            self._first = asyncio.ensure_future(anext(self._source))
        done, _ = await asyncio.wait({self._first}, timeout=timeout)
        if done and self._first.exception() is not None:
            self._first.result()
        return bool(done)

    def __aiter__(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        return self

    async def __anext__(self) -> tuple[int, RequestOutput]:
        if self._first is not None:
            first, self._first = self._first, None
            return await first
        return await anext(self._source)

    async def aclose(self) -> None:
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
            self._first = None
        await self._source.aclose()


def _start(engine: AsyncEngine, job: Job) -> AsyncGenerator[RequestOutput, None]:
    outputs = engine.generate(
        job.prompt_token_ids,
        job.params,
        job.request_id,
        priority=BACKGROUND_PRIORITY if in_background.get() else job.priority,
        cache_salt=job.cache_salt,
        arrival_time=job.arrival_time,
        **({} if job.pooling is None else {"pooling": job.pooling}),
    )
    # An engine's iterator can be closed, which aborts the request; its type does not say so.
    return cast(AsyncGenerator[RequestOutput, None], outputs)


async def _merge(
    sources: list[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Items of all sources in order of arrival.  The first error ends the others."""
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]) as source:
            async for output in source:
                yield 0, output
        return
    queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]] = asyncio.Queue()

    async def pump(number: int, source: AsyncGenerator[RequestOutput, None]) -> None:
        try:
            async for output in source:
                queue.put_nowait((number, output))
            queue.put_nowait((number, None))
        except Exception as error:
            queue.put_nowait((number, error))

    tasks = [asyncio.create_task(pump(i, source)) for i, source in enumerate(sources)]
    try:
        running = len(tasks)
        while running:
            number, item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield number, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
