"""Mixture of experts: a router chooses some of many MLPs for each token, and sums what they give.

Shazeer et al., "Outrageously Large Neural Networks", 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from inferx import ops
from inferx.layers.linear import Linear
from inferx.layers.mlp import MLP, MLPBuffers
from inferx.layers.placement import CPU, Placement
from inferx.layers.vector import Vector
from inferx.loader.config import MoEConfig

Choose = Callable[..., Any]


class MoEBuffers(MLPBuffers):
    """Scratch of one step, shared by all layers; plain MLPs among them use the base's.

    intermediate_size: of plain layers, 0 where there are none.  router_dtype: of the router's product.
    """

    __slots__ = ("ids", "logits", "routed", "shared", "shared_output", "weights")

    def __init__(
        self,
        num_tokens: int,
        hidden_size: int,
        intermediate_size: int,
        moe: MoEConfig,
        router_dtype: torch.dtype,
        placement: Placement = CPU,
    ) -> None:
        super().__init__(num_tokens, intermediate_size, placement)
        device = placement.device
        self.logits = torch.empty(num_tokens, moe.num_experts, dtype=router_dtype, device=device)
        self.weights = torch.empty(num_tokens, moe.top_k, dtype=torch.float32, device=device)
        self.ids = torch.empty(num_tokens, moe.top_k, dtype=torch.int32, device=device)
        self.routed = placement.empty(num_tokens, hidden_size)
        if moe.shared_intermediate_size:
            self.shared = MLPBuffers(num_tokens, moe.shared_intermediate_size, placement)
            self.shared_output = placement.empty(num_tokens, hidden_size)


def routing(moe: MoEConfig) -> Choose:
    """From logits to the weights and ids of the chosen experts, as one op."""
    options: dict[str, Any] = {
        "top_k": moe.top_k,
        "renormalize": moe.renormalize,
        "routed_scaling_factor": moe.routed_scaling_factor,
    }
    if moe.num_groups > 1:
        return partial(
            ops.grouped_topk,
            num_expert_group=moe.num_groups,
            topk_group=moe.top_groups,
            scoring_func=moe.scoring,
            **options,
        )
    return partial(ops.topk_sigmoid if moe.scoring == "sigmoid" else ops.topk_softmax, **options)


@dataclass
class Router:
    """score_bias: on the scores that choose, not on those that weigh."""

    gate: Linear
    choose: Choose
    score_bias: Vector | None = None

    def __call__(self, x: torch.Tensor, buffers: MoEBuffers) -> tuple[torch.Tensor, torch.Tensor]:
        """x: [T, hidden] -> weights float32 [T, top_k], expert ids int32 [T, top_k]."""
        self.gate(x.to(buffers.logits.dtype), buffers.logits)
        bias = None if self.score_bias is None else self.score_bias.values
        self.choose(buffers.logits, e_score_correction_bias=bias, out=(buffers.weights, buffers.ids))
        return buffers.weights, buffers.ids


class Experts:
    """The weights of all experts of a layer: w13 [E, 2 I, hidden] (gate rows, then up rows) and w2
    [E, hidden, I]; biases [E, 2 I] and [E, hidden] or None.  Set when the model is loaded."""

    __slots__ = ("w2", "w2_bias", "w13", "w13_bias")

    w13: ops.PackedExperts | torch.Tensor
    w2: ops.PackedExperts | torch.Tensor

    def __init__(self) -> None:
        self.w13_bias: torch.Tensor | None = None
        self.w2_bias: torch.Tensor | None = None


@dataclass
class MoE:
    """Routed experts, and one that is shared by all tokens.

    shared_gate: the shared expert's output is multiplied with sigmoid(shared_gate(x)).
    """

    router: Router
    experts: Experts
    activation: str
    shared: MLP | None = None
    shared_gate: Linear | None = None
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0

    def __call__(self, x: torch.Tensor, buffers: MoEBuffers, out: torch.Tensor) -> None:
        """x: [T, hidden] -> out, the same shape (may be x itself)."""
        weights, ids = self.router(x, buffers)
        experts = self.experts
        ops.fused_moe(
            x,
            experts.w13,
            experts.w2,
            weights,
            ids,
            activation=self.activation,
            w13_bias=experts.w13_bias,
            w2_bias=experts.w2_bias,
            swiglu_alpha=self.swiglu_alpha,
            swiglu_limit=self.swiglu_limit,
            out=buffers.routed,
        )
        if self.shared is None:
            out.copy_(buffers.routed)
            return
        shared = buffers.shared_output
        self.shared(x, buffers.shared, out=shared)
        if self.shared_gate is not None:
            # torch's sigmoid rounds the last few elements of a tensor by another path than the rest, so a
            # token's gate would depend on the batch; as the score of a single expert it does not.
            gate, _ = ops.topk_sigmoid(self.shared_gate(x), 1)
            shared.mul_(gate)
        torch.add(buffers.routed, shared, out=out)
