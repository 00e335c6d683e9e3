"""Qwen 2 and 2.5: Llama with biases on the query, key and value projections."""

from __future__ import annotations

from dataclasses import replace

from inferx.loader.config import ModelConfig
from inferx.models.decoder import Decoder


class Qwen2(Decoder):
    architecture = "qwen2"
    hf_architectures = ("Qwen2ForCausalLM",)
    gguf_architectures = ("qwen2",)

    @classmethod
    def complete(cls, config: ModelConfig) -> ModelConfig:
        return replace(config, attention_bias=True)
