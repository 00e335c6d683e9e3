"""OLMoE: experts in every layer, and norms over all query heads and all key heads."""

from __future__ import annotations

from dataclasses import replace

from inferx.loader.config import ModelConfig
from inferx.models.moe import MoEDecoder


class Olmoe(MoEDecoder):
    architecture = "olmoe"
    hf_architectures = ("OlmoeForCausalLM",)
    gguf_architectures = ("olmoe",)

    @classmethod
    def complete(cls, config: ModelConfig) -> ModelConfig:
        return replace(config, qk_norm_all_heads=True)
