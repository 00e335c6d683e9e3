"""Tiny configurations of every family with experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model_harness import VOCAB
from transformers import (
    DeepseekV2Config,
    DeepseekV3Config,
    GptOssConfig,
    MixtralConfig,
    OlmoeConfig,
    PretrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LATENT: dict[str, Any] = {
    **BASE,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "moe_intermediate_size": 40,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 20,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.9,
    "mscale_all_dim": 0.7,
}
GROUPS: dict[str, Any] = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}


def mixtral(**fields: Any) -> MixtralConfig:
    return MixtralConfig(**{**BASE, "num_local_experts": 8, "num_experts_per_tok": 2, **fields})


def qwen2_moe(**fields: Any) -> Qwen2MoeConfig:
    local = {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 56,
    }
    return Qwen2MoeConfig(**{**BASE, **local, **fields})


def qwen3_moe(**fields: Any) -> Qwen3MoeConfig:
    local = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "head_dim": 24}
    return Qwen3MoeConfig(**{**BASE, **local, **fields})


def olmoe(**fields: Any) -> OlmoeConfig:
    return OlmoeConfig(
        **{**BASE, "num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 40, **fields}
    )


def deepseek_v2(**fields: Any) -> DeepseekV2Config:
    local = {"topk_method": "greedy", "routed_scaling_factor": 1.5, "n_group": None, "topk_group": None}
    return DeepseekV2Config(**{**LATENT, **local, **fields})


def deepseek_v3(**fields: Any) -> DeepseekV3Config:
    local = {"n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
    return DeepseekV3Config(**{**LATENT, **local, **fields})


def gpt_oss(**fields: Any) -> GptOssConfig:
    local = {
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "intermediate_size": 40,
        "head_dim": 16,
        "sliding_window": 11,
        "num_hidden_layers": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 8.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 64,
        },
    }
    return GptOssConfig(**{**BASE, **local, **fields})


CASES: dict[str, Callable[[], PretrainedConfig]] = {
    "mixtral": mixtral,
    "mixtral-window": lambda: mixtral(sliding_window=9),
    "mixtral-5-of-5": lambda: mixtral(num_local_experts=5, num_experts_per_tok=5),
    "mixtral-1-of-3": lambda: mixtral(num_local_experts=3, num_experts_per_tok=1),
    "mixtral-1-of-1": lambda: mixtral(num_local_experts=1, num_experts_per_tok=1),
    "mixtral-tied-9q3kv": lambda: mixtral(
        num_attention_heads=9, num_key_value_heads=3, hidden_size=72, tie_word_embeddings=True
    ),
    "mixtral-gelu": lambda: mixtral(hidden_act="gelu"),
    "qwen2-moe": qwen2_moe,
    "qwen2-moe-normalised": lambda: qwen2_moe(norm_topk_prob=True),
    "qwen2-moe-60-experts": lambda: qwen2_moe(num_experts=60, num_experts_per_tok=4),
    "qwen2-moe-dense-layers": lambda: qwen2_moe(num_hidden_layers=3, mlp_only_layers=[1]),
    "qwen2-moe-sparse-step": lambda: qwen2_moe(num_hidden_layers=3, decoder_sparse_step=2),
    "qwen2-moe-no-sparse-layer": lambda: qwen2_moe(mlp_only_layers=[0, 1]),
    "qwen2-moe-no-biases": lambda: qwen2_moe(qkv_bias=False),
    "qwen3-moe": qwen3_moe,
    "qwen3-moe-normalised": lambda: qwen3_moe(norm_topk_prob=True),
    "qwen3-moe-dense-layers": lambda: qwen3_moe(mlp_only_layers=[0], hidden_act="gelu_pytorch_tanh"),
    # Its original length has no say.
    "qwen3-moe-dynamic": lambda: qwen3_moe(
        max_position_embeddings=32,
        rope_parameters={
            "rope_type": "dynamic",
            "rope_theta": 1e4,
            "factor": 3.0,
            "original_max_position_embeddings": 16,
        },
    ),
    "olmoe": olmoe,
    "olmoe-normalised-clipped": lambda: olmoe(norm_topk_prob=True, clip_qkv=0.7),
    "olmoe-9q3kv": lambda: olmoe(num_attention_heads=9, num_key_value_heads=3, hidden_size=72),
    "deepseek-v2": deepseek_v2,
    "deepseek-v2-groups": lambda: deepseek_v2(**GROUPS),
    "deepseek-v2-plain-query": lambda: deepseek_v2(q_lora_rank=None),
    "deepseek-v2-yarn": lambda: deepseek_v2(rope_parameters=YARN, q_lora_rank=None, attention_bias=True),
    "deepseek-v2-all-sparse": lambda: deepseek_v2(first_k_dense_replace=0),
    "deepseek-v3": deepseek_v3,
    "deepseek-v3-unnormalised": lambda: deepseek_v3(norm_topk_prob=False, n_group=1, topk_group=1),
    "deepseek-v3-plain-query": lambda: deepseek_v3(q_lora_rank=None),
    "deepseek-v3-yarn": lambda: deepseek_v3(rope_parameters=YARN),
    "deepseek-v3-yarn-equal-mscales": lambda: deepseek_v3(
        rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}
    ),
    "deepseek-v3-neox-rotary": lambda: deepseek_v3(rope_interleave=False, attention_bias=True),
    "deepseek-v3-5q": lambda: deepseek_v3(
        num_attention_heads=5, num_key_value_heads=5, n_routed_experts=60, num_experts_per_tok=8, n_group=3
    ),
    # The norms of the latents do not follow it.
    "deepseek-v3-epsilon": lambda: deepseek_v3(rms_norm_eps=0.1),
    # Saved with matrices of no rows.
    "deepseek-v3-no-shared-expert": lambda: deepseek_v3(n_shared_experts=0),
    "deepseek-v3-yarn-without-mscale": lambda: deepseek_v3(rope_parameters={**YARN, "mscale_all_dim": 0.0}),
    "deepseek-v3-dense": lambda: deepseek_v3(first_k_dense_replace=3),
    "gpt-oss": gpt_oss,
    "gpt-oss-rotary-default": lambda: gpt_oss(
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, num_experts_per_tok=6
    ),
    "gpt-oss-limit": lambda: gpt_oss(swiglu_limit=1.5, num_attention_heads=6, num_key_value_heads=3),
}
