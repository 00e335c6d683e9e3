"""gpt-oss: experts with a clamped SwiGLU and biases, attention sinks, and every other layer with a window."""

from __future__ import annotations

from dataclasses import replace

from inferx.loader.config import ModelConfig
from inferx.models.moe import MoEDecoder


class GptOss(MoEDecoder):
    architecture = "gpt_oss"
    hf_architectures = ("GptOssForCausalLM",)
    gguf_architectures = ("gpt-oss",)

    @classmethod
    def complete(cls, config: ModelConfig) -> ModelConfig:
        return replace(config, attention_sinks=True, hidden_act="swigluoai")
