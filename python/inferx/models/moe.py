"""What families with experts share: layers that have a router and experts in the place of an MLP."""

from __future__ import annotations

from typing import ClassVar

import torch

from inferx.layers.mlp import MLPBuffers
from inferx.layers.moe import MoE, MoEBuffers, Router, routing
from inferx.loader.config import MoEConfig
from inferx.models.decoder import Decoder
from inferx.models.layer import AnyMLP
from inferx.models.weights import WeightPlan


class MoEDecoder(Decoder):
    """``config.moe`` says which layers have experts; None: none has."""

    parts: ClassVar[tuple[str, ...]] = ("moe",)

    def build_mlp(self, weights: WeightPlan, prefix: str, index: int) -> AnyMLP:
        config, moe = self.config, self.config.moe
        if moe is None or not moe.layers[index]:
            return super().build_mlp(weights, prefix, index)
        shared = shared_gate = None
        if moe.shared_intermediate_size:
            shared = self.build_plain_mlp(weights, f"{prefix}.shared_experts", moe.shared_intermediate_size)
        if moe.shared_gate:
            shared_gate = weights.single(f"{prefix}.shared_expert_gate", 1, config.hidden_size)
        return MoE(
            router=self.build_router(weights, f"{prefix}.gate", moe),
            experts=weights.experts(
                f"{prefix}.experts",
                moe.num_experts,
                moe.intermediate_size,
                config.hidden_size,
                top_k=moe.top_k,
                bias=moe.expert_bias,
            ),
            activation=config.hidden_act,
            shared=shared,
            shared_gate=shared_gate,
            swiglu_alpha=config.swiglu_alpha,
            swiglu_limit=config.swiglu_limit,
        )

    def build_router(self, weights: WeightPlan, prefix: str, moe: MoEConfig) -> Router:
        hidden = self.config.hidden_size
        if self.float32_router:
            gate = weights.float32(prefix, moe.num_experts, hidden)
        else:
            gate = weights.single(prefix, moe.num_experts, hidden, bias=moe.router_bias)
        score_bias = None
        if moe.score_bias:
            score_bias = weights.vector(f"{prefix}.e_score_correction_bias", moe.num_experts)
        return Router(gate, routing(moe), score_bias)

    def mlp_buffers(self, num_tokens: int) -> MLPBuffers:
        config, moe = self.config, self.config.moe
        if moe is None:
            return super().mlp_buffers(num_tokens)
        return MoEBuffers(
            num_tokens,
            config.hidden_size,
            0 if all(moe.layers) else config.intermediate_size,
            moe,
            torch.float32 if self.float32_router else self.placement.dtype,
            self.placement,
        )
