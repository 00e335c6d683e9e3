"""Qwen 3: Llama with RMS norms on each query and key head, and an explicit head size."""

from __future__ import annotations

from dataclasses import replace

from inferx.loader.config import ModelConfig
from inferx.models.decoder import Decoder


class Qwen3(Decoder):
    architecture = "qwen3"
    hf_architectures = ("Qwen3ForCausalLM",)
    gguf_architectures = ("qwen3",)

    @classmethod
    def complete(cls, config: ModelConfig) -> ModelConfig:
        return replace(config, qk_norm=True)
