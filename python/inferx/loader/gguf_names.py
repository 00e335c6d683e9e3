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
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{
        f"ffn_{part}_{kind}": f"mlp.{module}.{part}_proj"
        for part in ("gate", "up", "down")
        for kind, module in (("exps", "experts"), ("shexp", "shared_experts"))
    },
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
}
# Parameters that are no layer's weight or bias, whatever the suffix.
_BARE = {
    "attn_sinks": "self_attn.sinks",
    "exp_probs_b": "mlp.gate.e_score_correction_bias",
}
# Where an architecture gives a leaf another meaning than the rest.
_BLOCK_OF = {
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
    "gpt-oss": {"post_attention_norm": "post_attention_layernorm"},
}
_BLOCK_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
# Files of before 2024 have a tensor for each expert.
_EXPERT_NAME = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)\.(\d+)\.weight")
_BLOCK_PREFIX = re.compile(r"blk\.(\d+)\.")
_TOP_NAME = re.compile(r"(\w+)\.(weight|bias)")

# Rotary tables: they become part of the configuration.
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def block_number(name: str) -> int | None:
    match = _BLOCK_PREFIX.match(name)
    return int(match[1]) if match else None


def canonical_name(architecture: str, name: str) -> str:
    """The Hugging Face name; a name nobody knows comes back as it is, for the model to refuse."""
    if match := _BLOCK_NAME.fullmatch(name):
        layer, leaf, kind = match.groups()
        if leaf in _BARE:
            return f"model.layers.{int(layer)}.{_BARE[leaf]}"
        target = _BLOCK_OF.get(architecture, {}).get(leaf) or _BLOCK.get(leaf)
        return name if target is None else f"model.layers.{int(layer)}.{target}.{kind}"
    if match := _EXPERT_NAME.fullmatch(name):
        layer, part, expert = match.groups()
        return f"model.layers.{int(layer)}.mlp.experts.{int(expert)}.{part}_proj.weight"
    if match := _TOP_NAME.fullmatch(name):
        leaf, kind = match.groups()
        target = _TOP.get(leaf)
        return name if target is None else f"{target}.{kind}"
    return name
