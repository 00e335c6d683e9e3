"""Gemma 3, text part: norms before and after each branch, query/key norms, scaled embedding, and mostly
sliding-window layers with a rotary base of their own."""

from __future__ import annotations

from dataclasses import replace

from inferx.loader.config import ModelConfig
from inferx.models.decoder import Decoder
from inferx.models.layer import DecoderLayer
from inferx.models.weights import WeightPlan


class Gemma3(Decoder):
    architecture = "gemma3"
    hf_architectures = ("Gemma3ForCausalLM",)
    gguf_architectures = ("gemma3",)

    @classmethod
    def complete(cls, config: ModelConfig) -> ModelConfig:
        scale = config.hidden_size**0.5 if config.embedding_scale is None else config.embedding_scale
        return replace(config, qk_norm=True, embedding_scale=scale)

    def build_layer(self, weights: WeightPlan, index: int) -> DecoderLayer:
        prefix = f"model.layers.{index}"
        return DecoderLayer(
            attention_norm=self.build_norm(weights, f"{prefix}.input_layernorm"),
            attention=self.build_attention(weights, f"{prefix}.self_attn", index),
            attention_output_norm=self.build_norm(weights, f"{prefix}.post_attention_layernorm"),
            mlp_norm=self.build_norm(weights, f"{prefix}.pre_feedforward_layernorm"),
            mlp=self.build_mlp(weights, f"{prefix}.mlp", index),
            mlp_output_norm=self.build_norm(weights, f"{prefix}.post_feedforward_layernorm"),
        )
