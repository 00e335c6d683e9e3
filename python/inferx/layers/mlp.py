"""Gated feed-forward network: down(act(gate(x)) * up(x))."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from inferx import ops
from inferx.layers.linear import Linear, MergedLinear
from inferx.layers.placement import CPU, Placement

# By the names that configurations use for the activation.
GATED_ACTIVATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "silu": ops.silu_and_mul,
    "gelu": ops.gelu_and_mul,
    "gelu_pytorch_tanh": ops.gelu_tanh_and_mul,
}


class MLPBuffers:
    """Scratch of one step, shared by all layers."""

    __slots__ = ("gate_up", "product")

    def __init__(self, num_tokens: int, intermediate_size: int, placement: Placement = CPU) -> None:
        self.gate_up = placement.empty(num_tokens, 2 * intermediate_size)
        self.product = placement.empty(num_tokens, intermediate_size)


@dataclass
class MLP:
    gate_up: Linear | MergedLinear
    down: Linear
    activation: Callable[..., torch.Tensor]

    def __call__(self, x: torch.Tensor, buffers: MLPBuffers, out: torch.Tensor) -> None:
        """x: [T, hidden] -> out, the same shape (may be x itself)."""
        self.gate_up(x, buffers.gate_up)
        self.activation(buffers.gate_up, out=buffers.product)
        self.down(buffers.product, out)
