"""Phi-3 and Phi-4-mini: Llama with longrope and partial rotary.

Files store QKV and gate/up as one matrix each; loaders present them split, and they are packed as one again.
"""

from __future__ import annotations

from inferx.models.decoder import Decoder


class Phi3(Decoder):
    architecture = "phi3"
    hf_architectures = ("Phi3ForCausalLM",)
    gguf_architectures = ("phi3",)
