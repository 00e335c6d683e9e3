"""Mistral: Llama with one sliding window for all layers (early versions) and its own head size (Nemo)."""

from __future__ import annotations

from inferx.models.decoder import Decoder


class Mistral(Decoder):
    architecture = "mistral"
    hf_architectures = ("MistralForCausalLM",)
    # GGUF files of Mistral models call themselves "llama"; "mistral" is accepted should one not.
    gguf_architectures = ("mistral",)
