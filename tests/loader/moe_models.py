"""Tiny mixtures of experts of every family, and their canonical tensors by the definition of transformers."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
}
LATENT: dict[str, Any] = SIZES | {
    "num_key_value_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "first_k_dense_replace": 1,
}
CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "mixtral": (transformers.MixtralConfig, SIZES | {"num_local_experts": 5}),
    "qwen2_moe": (
        transformers.Qwen2MoeConfig,
        SIZES
        | {
            "num_experts": 5,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
            "mlp_only_layers": [1],
        },
    ),
    "qwen3_moe": (
        transformers.Qwen3MoeConfig,
        SIZES
        | {
            "num_experts": 5,
            "moe_intermediate_size": 32,
            "head_dim": 32,
            "decoder_sparse_step": 2,
            "norm_topk_prob": True,
        },
    ),
    "olmoe": (transformers.OlmoeConfig, SIZES | {"num_experts": 5, "intermediate_size": 32, "clip_qkv": 1.5}),
    "deepseek_v2": (transformers.DeepseekV2Config, LATENT | {"q_lora_rank": None}),
    "deepseek_v2_groups": (
        transformers.DeepseekV2Config,
        LATENT
        | {
            "q_lora_rank": 32,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 16.0,
        },
    ),
    "deepseek_v3": (
        transformers.DeepseekV3Config,
        LATENT
        | {
            "q_lora_rank": 32,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "mscale": 1.0,
                "mscale_all_dim": 0.707,
            },
        },
    ),
    "gpt_oss": (
        transformers.GptOssConfig,
        SIZES | {"num_local_experts": 5, "intermediate_size": 32, "head_dim": 32, "sliding_window": 16},
    ),
}
_PROJECTIONS = ("gate", "up")


def build(name: str, **changes: Any) -> PreTrainedModel:
    """Every parameter and buffer of the weights random, and different."""
    kind, options = CONFIGS[name]
    model = transformers.AutoModelForCausalLM.from_config(kind(**(options | changes)))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.state_dict().values():
            value.copy_(torch.randn(value.shape, generator=generator))
    return model


def canonical_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    config, result = model.config, {}
    for name, value in model.state_dict().items():
        stem, _, leaf = name.rpartition(".")
        if stem.endswith(".mlp.experts"):
            for expert in range(value.shape[0]):
                for part, matrix in _expert(leaf, value[expert], config.model_type == "gpt_oss").items():
                    result[f"{stem}.{expert}.{part}"] = matrix
            continue
        name = name.replace(".mlp.router.", ".mlp.gate.").replace(".shared_expert.", ".shared_experts.")
        if leaf == "weight" and stem.endswith(
            "q_proj" if getattr(config, "q_lora_rank", None) is None else "q_b_proj"
        ):
            value = _halves(value, config)
        elif stem.endswith("kv_a_proj_with_mqa"):
            latent, key = value.split([config.kv_lora_rank, config.qk_rope_head_dim])
            value = torch.cat([latent, torch.cat([key[0::2], key[1::2]])])
        result[name] = value
    return result


def _halves(value: torch.Tensor, config: Any) -> torch.Tensor:
    """Rotary rows of each query head from pairs to halves."""
    if not config.model_type.startswith("deepseek") or not getattr(config, "rope_interleave", True):
        return value
    heads = value.view(config.num_attention_heads, -1, value.shape[1])
    still, rotary = heads.split([config.qk_nope_head_dim, config.qk_rope_head_dim], dim=1)
    return torch.cat([still, rotary[:, 0::2], rotary[:, 1::2]], dim=1).reshape(value.shape)


def _expert(leaf: str, value: torch.Tensor, gpt_oss: bool) -> dict[str, torch.Tensor]:
    """One expert's slice of a stack: gpt-oss computes ``x @ value`` and takes every other column."""
    kind = "bias" if leaf.endswith("_bias") else "weight"
    value = value.T if gpt_oss and kind == "weight" else value
    if leaf.startswith("down"):
        return {f"down_proj.{kind}": value}
    parts = (value[0::2], value[1::2]) if gpt_oss else value.chunk(2)
    return {f"{name}_proj.{kind}": part for name, part in zip(_PROJECTIONS, parts, strict=True)}
