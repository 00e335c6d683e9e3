"""Mapping files into memory."""

from __future__ import annotations

import contextlib
import math
import mmap
from pathlib import Path

import numpy as np
import torch

from inferx.errors import LoadError


def map_file(path: Path) -> mmap.mmap:
    """A private (copy-on-write) mapping: torch may treat it as writable and still nothing reaches the file.

    LoadError when the file is missing, unreadable or empty.
    """
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except ValueError as error:  # mmap refuses empty files
        raise LoadError(f"{path}: the file is empty") from error
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror or error}") from error


def tensor_at(mapping: mmap.mmap, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A view of the mapping, without a copy.

    numpy in between holds the buffer, so that the mapping cannot be closed under a living tensor
    (``torch.frombuffer`` lets go of it).
    """
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.frombuffer(mapping, dtype=np.uint8, count=nbytes, offset=offset)
    return torch.from_numpy(raw).view(dtype).reshape(shape)


def release_pages(mapping: mmap.mmap) -> None:
    """The mapping's pages count as this process's memory no more; they are read again when touched."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def unmap(mapping: mmap.mmap) -> None:
    """Tensors that still look into the mapping keep it alive; it goes with the last of them."""
    with contextlib.suppress(BufferError):
        mapping.close()
