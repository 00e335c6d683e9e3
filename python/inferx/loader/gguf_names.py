"""GGUF tensor names to Hugging Face names, per architecture."""

from __future__ import annotations

import re

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
}
# Where an architecture gives a leaf another meaning than the rest.
_BLOCK_OF = {
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
}
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_TOP_NAME = re.compile(r"(\w+)\.(weight|bias)")

# Rotary tables: they become part of the configuration.
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def canonical_name(architecture: str, name: str) -> str:
    """The Hugging Face name; a name nobody knows comes back as it is, for the model to refuse."""
    if match := _BLOCK_NAME.fullmatch(name):
        layer, leaf, kind = match.groups()
        target = _BLOCK_OF.get(architecture, {}).get(leaf) or _BLOCK.get(leaf)
        return name if target is None else f"model.layers.{int(layer)}.{target}.{kind}"
    if match := _TOP_NAME.fullmatch(name):
        leaf, kind = match.groups()
        target = _TOP.get(leaf)
        return name if target is None else f"{target}.{kind}"
    return name
