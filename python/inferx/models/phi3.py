"""Phi-3 and Phi-4-mini: Llama with QKV and gate/up stored as one matrix each, longrope, partial rotary."""

from __future__ import annotations

from inferx.layers.linear import AnyLinear
from inferx.models.decoder import Decoder
from inferx.models.weights import WeightPlan


class Phi3(Decoder):
    architecture = "phi3"
    hf_architectures = ("Phi3ForCausalLM",)
    gguf_architectures = ("phi3",)

    def build_qkv(self, weights: WeightPlan, prefix: str) -> AnyLinear:
        config = self.config
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        return weights.linear(
            f"{prefix}.qkv_proj", heads * config.head_dim, config.hidden_size, bias=config.attention_bias
        )

    def build_gate_up(self, weights: WeightPlan, prefix: str) -> AnyLinear:
        config = self.config
        return weights.linear(
            f"{prefix}.gate_up_proj", 2 * config.intermediate_size, config.hidden_size, bias=config.mlp_bias
        )
