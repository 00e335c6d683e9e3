"""Memory for packed weights: neighbours in large mappings, on huge pages where the system has them.

A decode step reads every weight once.  On pages of 4 KiB that is a miss of the address translation every
64 lines, and the hardware's prefetchers stop at each page's end.
"""

from __future__ import annotations

import contextlib
import mmap
import threading

import torch

ALIGNMENT = 64  # bytes: a cache line, and the widest vector
_CHUNK = 32 << 20  # what is left of one is not touched, and takes no memory
_LARGE = 4 << 20  # gets a mapping of its own


class _Chunks:
    """Hands out pieces of one mapping after another.  A mapping lives as long as a piece of it does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free = torch.empty(0, dtype=torch.uint8)

    def take(self, nbytes: int) -> torch.Tensor:
        size = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if size > _LARGE:
            return _map(nbytes)
        with self._lock:
            if size > self._free.numel():
                self._free = _map(_CHUNK)
            taken, self._free = self._free[:nbytes], self._free[size:]
        return taken


def _map(nbytes: int) -> torch.Tensor:
    """Where it begins is the kernel's choice: at a huge page's beginning since Linux 6.7."""
    try:
        memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{nbytes} bytes for weights: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


_chunks = _Chunks()


def weight_memory(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes], uninitialised, at a multiple of ALIGNMENT.  MemoryError where there is none."""
    return _chunks.take(nbytes)
