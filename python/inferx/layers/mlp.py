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
# As a step program calls them.
_ACTIVATION_NAMES = {
    ops.silu_and_mul: "silu",
    ops.gelu_and_mul: "gelu",
    ops.gelu_tanh_and_mul: "gelu_tanh",
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

    @property
    def input_kinds(self) -> set[bool]:
        return self.gate_up.input_kinds

    def record(self, step: ops.StepProgram, x: ops.StepInput, out: ops.Columns) -> None:
        """Gives back the codes of ``x``."""
        gate_up, down, size = self.gate_up, self.down, self.down.weight.shape[1]
        activation = _ACTIVATION_NAMES[self.activation]
        floats = None
        if isinstance(gate_up, Linear) and gate_up.int8 and down.int8 and size % 32 == 0:
            assert x.codes is not None
            assert isinstance(gate_up.weight, ops.PackedWeight)
            codes = step.gate_up_int8(x.codes, gate_up.weight, gate_up.bias, activation)
            product = ops.StepInput(None, codes)
            step.give_back(x.codes)
        else:
            both = step.take(2 * size)
            gate_up.record(step, x, both)
            step.give_back(x.codes)
            floats = step.take(size)
            step.activate_and_mul(activation, both, floats)
            step.give_back(both)
            product = step.input(floats, down.input_kinds)
        down.record(step, product, out)
        step.give_back(floats, product.codes)
