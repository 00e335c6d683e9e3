"""Names of experts, routers and shared experts in Hugging Face files to the canonical ones."""

from __future__ import annotations

import re
from typing import Any

from inferx.loader.config import ModelConfig

_RENAMED = (
    (".block_sparse_moe.", ".mlp."),  # Mixtral
    (".mlp.router.", ".mlp.gate."),  # gpt-oss
    (".mlp.shared_expert.", ".mlp.shared_experts."),  # Qwen2-MoE
)
_MIXTRAL_PROJECTIONS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_MIXTRAL_EXPERT = re.compile(r"(.*\.mlp\.experts\.\d+)\.(w[123])\.(weight|bias)")
# Parameters of one module rather than of linear layers in it, so without a kind.
_STACKED = re.compile(r"(.*\.mlp\.experts\.(?:gate_up|down)_proj)(_bias|_blocks)?")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def moe_name(stored: str) -> str:
    """``model.layers.N.mlp.experts.gate_up_proj.weight`` stands for all experts' gates and ups."""
    name = stored
    for old, new in _RENAMED:
        name = name.replace(old, new)
    if match := _MIXTRAL_EXPERT.fullmatch(name):
        return f"{match[1]}.{_MIXTRAL_PROJECTIONS[match[2]]}.{match[3]}"
    if match := _STACKED.fullmatch(name):
        return f"{match[1]}.{'bias' if match[2] == '_bias' else 'weight'}"
    return name


def extra_layer(name: str, config: ModelConfig, count: Any) -> bool:
    """Whether the tensor belongs to one of ``count`` layers behind the model's own, which predict further
    tokens (DeepSeek-V3) and are not run."""
    match = _LAYER.match(name)
    if match is None or type(count) is not int or config.architecture != "deepseek_v3":
        return False
    return config.num_hidden_layers <= int(match[1]) < config.num_hidden_layers + count
