"""Qwen 1.5 and 2 MoE: Qwen 2 with experts beside one for all tokens, whose output has a gate of its own."""

from __future__ import annotations

from inferx.models.moe import MoEDecoder


class Qwen2MoE(MoEDecoder):
    """Unlike in Qwen 2, biases of queries, keys and values are a choice of the file."""

    architecture = "qwen2_moe"
    hf_architectures = ("Qwen2MoeForCausalLM",)
    gguf_architectures = ("qwen2moe",)
