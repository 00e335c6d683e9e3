"""Where a model's activations lie, and how its weights are stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Placement:
    """device, dtype: of the activations.

    dense: weights are plain tensors of ``dtype`` on the device, for torch's matrix products; otherwise they
    are packed for the CPU kernels, quantised ones included, and activations are float32.
    int8: inputs of linear layers with packed, block-quantised weights are quantised too (``ops.linear``).
    """

    device: torch.device
    dtype: torch.dtype
    dense: bool
    int8: bool = False

    def empty(self, *shape: int) -> torch.Tensor:
        """Uninitialised activations."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)


CPU = Placement(torch.device("cpu"), torch.float32, dense=False)
CPU_INT8 = Placement(torch.device("cpu"), torch.float32, dense=False, int8=True)
