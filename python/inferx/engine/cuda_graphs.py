"""CUDA graphs of decode steps: which batch sizes have one, and when one is captured.

A graph replays the kernels of a step with the same addresses and sizes, so a step with fewer requests is
padded to the next size that has a graph.  Graphs are captured while serving, one at a time: a size that comes
up runs without one at first and is queued; the queue is worked on when the engine is idle, or else at most
once in ``CAPTURE_INTERVAL`` steps, so that no request waits long for it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Protocol

import torch

logger = logging.getLogger("inferx.engine")

# A capture takes some tens of milliseconds: with steps of 10 ms, at most a tenth of the time.
CAPTURE_INTERVAL = 64
# Before a size is worth a graph: a batch that drains passes through many sizes once.
USES_BEFORE_CAPTURE = 3


def decode_buckets(max_num_seqs: int) -> list[int]:
    """Batch sizes that get a graph: 1, 2, 4, then multiples of 8, and the largest."""
    sizes = [size for size in (1, 2, 4) if size < max_num_seqs]
    return [*sizes, *range(8, max_num_seqs, 8), max_num_seqs]


class GraphPolicy:
    """What to do with a decode step of some size.  Pure: counts steps, touches no device."""

    def __init__(
        self,
        max_num_seqs: int,
        *,
        interval: int = CAPTURE_INTERVAL,
        uses_before_capture: int = USES_BEFORE_CAPTURE,
    ) -> None:
        self.buckets = decode_buckets(max_num_seqs)
        self._interval = interval
        self._needed_uses = uses_before_capture
        self._uses: dict[int, int] = {}
        self._captured: set[int] = set()
        self._queue: list[int] = []
        self._steps_since_capture = interval
        self._stopped = False

    def bucket(self, batch: int) -> int | None:
        """The smallest bucket that holds ``batch`` requests; None when there is none."""
        index = bisect_left(self.buckets, batch)
        return self.buckets[index] if batch > 0 and index < len(self.buckets) else None

    def graph_for(self, batch: int) -> int | None:
        """The bucket whose graph runs a decode step of ``batch`` requests, None to run it without.

        Called once for each such step: sizes that come up often enough are queued for capture.
        """
        bucket = self.bucket(batch)
        if bucket is None or bucket in self._captured:
            return bucket
        uses = self._uses[bucket] = self._uses.get(bucket, 0) + 1
        if uses == self._needed_uses and not self._stopped:
            self._queue.append(bucket)
        return None

    @property
    def has_queued(self) -> bool:
        return bool(self._queue)

    def on_step(self) -> None:
        """A step, of whatever kind, has been launched."""
        self._steps_since_capture += 1

    def next_capture(self, *, idle: bool) -> int | None:
        """The bucket to capture now, or None: nothing is queued, or it is not the moment.

        The one that was asked for most goes first.
        """
        if not self._queue or not (idle or self._steps_since_capture >= self._interval):
            return None
        bucket = max(self._queue, key=lambda size: (self._uses[size], size))
        self._queue.remove(bucket)
        self._steps_since_capture = 0
        return bucket

    def captured(self, bucket: int) -> None:
        self._captured.add(bucket)

    def stop(self) -> None:
        """No more captures (memory, or one failed); graphs that exist go on being used."""
        self._stopped = True
        self._queue.clear()


class GraphBackend(Protocol):
    """Captures and replays.  A test's stand-in calls the function again instead."""

    def capture(self, run: Callable[[], torch.Tensor]) -> Any:
        """Record ``run``; what is returned goes to ``replay``.  MemoryError when its memory is used up."""
        ...

    def replay(self, graph: Any) -> None:
        """Run it again, on what its inputs hold now and into what it wrote to then."""
        ...


class DecodeGraphs:
    """The graphs of decode steps, and what they read and write beside the staged arrays.

    hidden: [max_num_seqs, hidden_size], shared by all: the states of the last step that ran.  max_blocks: of
    one request; a row of the block table is as long in a graph, and what lies behind a request's blocks is
    never read.
    """

    def __init__(self, backend: GraphBackend, hidden: torch.Tensor, max_blocks: int) -> None:
        self.policy = GraphPolicy(len(hidden))
        self._backend = backend
        self._hidden = hidden
        self._tables = torch.zeros(len(hidden), max_blocks, dtype=torch.int32, device=hidden.device)
        self._graphs: dict[int, Any] = {}

    def capture(self, bucket: int, forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        """forward(block_tables, out): a step of ``bucket`` requests.  A failure only ends capturing."""
        tables, out = self._tables[:bucket], self._hidden[:bucket]
        try:
            self._graphs[bucket] = self._backend.capture(lambda: forward(tables, out))
        except (RuntimeError, MemoryError) as error:
            logger.warning("no CUDA graph for %d requests, nor for further sizes: %s", bucket, error)
            self.policy.stop()
            return
        self.policy.captured(bucket)

    def run(self, bucket: int, block_tables: torch.Tensor) -> torch.Tensor:
        """Replay on the staged arrays; the states, valid until the next run."""
        self._tables[:bucket, : block_tables.shape[1]].copy_(block_tables)
        self._backend.replay(self._graphs[bucket])
        return self._hidden[:bucket]


class CudaGraphBackend:
    """torch.cuda.graph, with one memory pool for all graphs.

    reserve: bytes of the GPU that they may take.
    """

    def __init__(self, device: torch.device, reserve: int) -> None:
        self._device = device
        self._reserve = reserve
        self._used = 0
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], torch.Tensor]) -> torch.cuda.CUDAGraph:
        if self._used >= self._reserve:
            raise MemoryError(f"the {self._reserve >> 20} MiB kept free for CUDA graphs are used up")
        # Kernels and cuBLAS set themselves up when first used, which must not happen while capturing.
        run()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # as entering the capture does: the figures before and after are comparable
        free = torch.cuda.mem_get_info(self._device)[0]
        graph = torch.cuda.CUDAGraph()
        # thread_local: what the caller's other threads do with the GPU is no concern of ours.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            run()
        torch.cuda.synchronize(self._device)
        self._used += max(0, free - torch.cuda.mem_get_info(self._device)[0])
        return graph

    def replay(self, graph: torch.cuda.CUDAGraph) -> None:
        graph.replay()
