"""Mixtral: Mistral with experts in every layer."""

from __future__ import annotations

from inferx.models.moe import MoEDecoder


class Mixtral(MoEDecoder):
    architecture = "mixtral"
    hf_architectures = ("MixtralForCausalLM",)
    # Converters of old wrote Mixtral as "llama" with experts; the loader tells the two apart.
    gguf_architectures = ()
