"""A vector that is no bias or norm of a layer of its own: attention sinks, a router's bias."""

from __future__ import annotations

import torch


class Vector:
    """values: float32 [size], set when the model is loaded."""

    __slots__ = ("values",)

    values: torch.Tensor
