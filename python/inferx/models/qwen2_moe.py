"""Qwen 1.5 and 2 MoE: Qwen 2 with experts beside one for all tokens, whose output has a gate of its own."""

from __future__ import annotations

from dataclasses import replace

from inferx.loader.config import ModelConfig
from inferx.models.moe import MoEDecoder


class Qwen2MoE(MoEDecoder):
    architecture = "qwen2_moe"
    hf_architectures = ("Qwen2MoeForCausalLM",)
    gguf_architectures = ("qwen2moe",)

    @classmethod
    def complete(cls, config: ModelConfig) -> ModelConfig:
        return replace(config, attention_bias=True)
