"""Llama 1 to 3 and everything of its shape (SmolLM2, TinyLlama, Yi): the plain pre-norm decoder."""

from __future__ import annotations

from inferx.models.decoder import Decoder


class Llama(Decoder):
    architecture = "llama"
    hf_architectures = ("LlamaForCausalLM",)
    gguf_architectures = ("llama",)
