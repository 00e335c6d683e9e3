"""Qwen 3 MoE: Qwen 3 with experts."""

from __future__ import annotations

from dataclasses import replace

from inferx.loader.config import ModelConfig
from inferx.models.moe import MoEDecoder


class Qwen3MoE(MoEDecoder):
    architecture = "qwen3_moe"
    hf_architectures = ("Qwen3MoeForCausalLM",)
    gguf_architectures = ("qwen3moe",)

    @classmethod
    def complete(cls, config: ModelConfig) -> ModelConfig:
        return replace(config, qk_norm=True)
