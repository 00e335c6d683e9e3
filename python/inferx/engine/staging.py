"""Bringing a step's arrays to a device without waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceABC
from typing import Any, Protocol

import numpy as np
import torch

from inferx.engine.batch import BatchArrays, BatchShape, Layout, fill, layout_of
from inferx.engine.device import Device
from inferx.engine.scheduler_output import ScheduledSequence

# Steps whose arrays may be on their way at once.
NUM_BUFFERS = 2


class Event(Protocol):
    """As torch.cuda.Event."""

    def record(self) -> Any: ...

    def synchronize(self) -> Any: ...


def staging_bytes(max_tokens: int, max_batch: int, max_blocks: int) -> int:
    """Bytes of the largest step's arrays."""
    # A request has at most one block copied for a prefix and one before it is written to.
    copies = 2 * max_batch
    shape = BatchShape(
        max_tokens, max_batch, width=max_blocks, samples=max_batch, sources=max_batch, copies=copies
    )
    return Layout(shape).nbytes


class HostBuffer:
    """Pinned memory that a device copies from."""

    def __init__(self, memory: torch.Tensor, make_event: Callable[[], Event] | None) -> None:
        self.memory = memory
        self.array: np.ndarray = memory.numpy()
        self._event = make_event() if make_event is not None else None
        self._copied = False

    def wait(self) -> None:
        """Until the last copy from here is over."""
        if self._copied and self._event is not None:
            self._event.synchronize()

    def copied(self) -> None:
        """A copy has been queued."""
        self._copied = True
        if self._event is not None:
            self._event.record()


class Staging:
    """Builds batches in pinned memory and copies each in one go, asynchronously.

    The host buffers take turns: one is written again only when the copy from it, two steps ago, is over.  On
    the device there is one buffer, always at the same address, so that graphs can read from it; the steps
    that use it follow one another on one stream, and so do the copies into it.
    """

    def __init__(
        self,
        device: Device,
        *,
        max_tokens: int,
        max_batch: int,
        max_blocks: int,
        block_size: int,
        make_event: Callable[[], Event] | None = None,
    ) -> None:
        """max_blocks: of one request.  make_event: torch.cuda.Event on a GPU."""
        largest = BatchShape(
            max_tokens,
            max_batch,
            width=max_blocks,
            samples=max_batch,
            sources=max_batch,
            copies=2 * max_batch,
        )
        self._capacity = Layout(largest).nbytes
        self._block_size = block_size
        self._pinned = device.kind == "cuda"
        self._make_event = make_event
        self._hosts = [self._host_buffer(self._capacity) for _ in range(NUM_BUFFERS)]
        self._turn = 0
        self._memory = torch.zeros(self._capacity, dtype=torch.uint8, device=device.torch_device)

    def stage(
        self,
        entries: SequenceABC[ScheduledSequence],
        *,
        pad_to: int | None = None,
        block_copies: SequenceABC[tuple[int, int]] = (),
    ) -> BatchArrays:
        """The arrays of a step on the device, valid until the next call."""
        layout = layout_of(BatchShape.of(entries, self._block_size, pad_to=pad_to, copies=len(block_copies)))
        if layout.nbytes > self._capacity:
            raise ValueError(f"a step's arrays take {layout.nbytes} bytes; {self._capacity} were foreseen")
        host = self._hosts[self._turn]
        self._turn = (self._turn + 1) % NUM_BUFFERS
        host.wait()
        first_rows = fill(layout, host.array, entries, self._block_size)
        if block_copies:
            start, _, size = layout.fields["block_copies"]
            np.ndarray(size, np.int64, host.array, start)[:] = block_copies
        self._memory[: layout.nbytes].copy_(host.memory[: layout.nbytes], non_blocking=True)
        host.copied()
        return BatchArrays(layout, self._memory, first_rows)

    def _host_buffer(self, capacity: int) -> HostBuffer:
        memory = torch.empty(capacity, dtype=torch.uint8, pin_memory=self._pinned)
        return HostBuffer(memory, self._make_event)
