"""Small arrays of a step's sampling on their way to the device and back, without waiting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

_ALIGNMENT = 16


def upload(arrays: Sequence[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """The arrays as tensors on ``device``: to a GPU in one asynchronous copy from pinned memory."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    return upload_together(arrays, device, pinned=True)


def upload_together(
    arrays: Sequence[np.ndarray], device: torch.device, *, pinned: bool
) -> list[torch.Tensor]:
    """The same as views of one tensor."""
    starts, size = [], 0
    for array in arrays:
        starts.append(size)
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    # torch keeps pinned memory from being used again before copies from it are over.
    host = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    memory = host.numpy()
    for array, start in zip(arrays, starts, strict=True):
        memory[start : start + array.nbytes] = array.view(np.uint8)
    copied = host.to(device, non_blocking=True)
    return [
        copied[start : start + array.nbytes].view(torch.from_numpy(array).dtype)
        for array, start in zip(arrays, starts, strict=True)
    ]


class Download:
    """Tensors on their way to the host."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._event: torch.cuda.Event | None = None
        if not tensors or not tensors[0].is_cuda:
            self._tensors = list(tensors)
            return
        self._tensors = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
        for host, tensor in zip(self._tensors, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        # Of these copies only: what is queued behind them is not waited for.
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self) -> list[torch.Tensor]:
        if self._event is not None:
            self._event.synchronize()
        return self._tensors
