"""Work that takes too long is given up, blocks nobody, and is refused when too much of it is stuck."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from inferx.server.errors import ApiError
from inferx.server.workers import MAX_STUCK, WorkerPool

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool("test", 2, 0.2)
    yield pool
    pool.close()


class Native:
    """Work that no exception reaches, as in a library that does not come back to Python."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def __call__(self) -> str:
        self.gate.wait()
        return "late"


def forever() -> None:
    while True:
        pass


async def test_results_and_errors_come_back(pool: WorkerPool) -> None:
    assert await pool.run(lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)
    assert await asyncio.gather(*(pool.run(lambda i=i: i) for i in range(50))) == list(range(50))


async def test_python_that_does_not_end_is_ended(pool: WorkerPool) -> None:
    with pytest.raises(ApiError) as error:
        await pool.run(forever, param="messages")
    assert (error.value.status, error.value.code, error.value.param) == (400, "text_timeout", "messages")
    for _ in range(100):
        if pool.num_stuck == 0:
            break
        await asyncio.sleep(0.05)
    assert pool.num_stuck == 0
    for _ in range(2 * MAX_STUCK):  # so it never fills the pool
        with pytest.raises(ApiError):
            await pool.run(forever)
    assert await pool.run(lambda: 5) == 5


async def test_stuck_work_blocks_nobody_until_there_is_too_much(pool: WorkerPool) -> None:
    stuck = [Native() for _ in range(MAX_STUCK)]
    results: list[Any] = await asyncio.gather(*(pool.run(work) for work in stuck), return_exceptions=True)
    assert [r.code for r in results] == ["text_timeout"] * MAX_STUCK
    assert pool.num_stuck == MAX_STUCK
    with pytest.raises(ApiError) as error:
        await pool.run(lambda: 1)
    assert (error.value.status, error.value.code) == (503, "text_workers_busy")
    assert error.value.retry_after
    stuck[0].gate.set()
    while pool.num_stuck == MAX_STUCK:
        await asyncio.sleep(0.01)
    assert await pool.run(lambda: 1) == 1
    for work in stuck:
        work.gate.set()


async def test_others_go_on_beside_stuck_work(pool: WorkerPool) -> None:
    stuck = [Native(), Native()]
    waiting = [asyncio.ensure_future(pool.run(work)) for work in stuck]
    started = time.monotonic()
    assert await pool.run(lambda: "done") == "done"  # once their time is over
    assert time.monotonic() - started < 5
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(r, ApiError) for r in results)
    for work in stuck:
        work.gate.set()


async def test_what_nobody_waits_for_is_not_begun(pool: WorkerPool) -> None:
    holders = [Native(), Native()]
    held = [asyncio.ensure_future(pool.run(work)) for work in holders]
    begun = []
    left = asyncio.ensure_future(pool.run(lambda: begun.append(1)))
    await asyncio.sleep(0.05)
    left.cancel()
    for work in holders:
        work.gate.set()
    await asyncio.gather(*held)
    assert await pool.run(lambda: 1) == 1
    assert begun == []


async def test_waiting_for_a_thread_has_an_end(pool: WorkerPool) -> None:
    """A pool whose threads are all busy, one piece after the other, each within its time."""
    work = [asyncio.ensure_future(pool.run(time.sleep, 0.15)) for _ in range(16)]
    results = await asyncio.gather(*work, return_exceptions=True)
    codes = {r.code for r in results if isinstance(r, ApiError)}
    assert codes == {"text_workers_busy"}
    assert results[0] is None
