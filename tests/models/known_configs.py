"""Configurations of published models."""

from __future__ import annotations

from inferx.loader.config import MLAConfig, ModelConfig, MoEConfig, RopeConfig

MIXTRAL_8X7B = ModelConfig(
    architecture="mixtral",
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=32768,
    moe=MoEConfig(num_experts=8, top_k=2, intermediate_size=14336, layers=(True,) * 32, renormalize=True),
)
DEEPSEEK_V3 = ModelConfig(
    architecture="deepseek_v3",
    vocab_size=129280,
    hidden_size=7168,
    intermediate_size=18432,
    num_hidden_layers=61,
    num_attention_heads=128,
    num_key_value_heads=128,
    head_dim=192,
    max_position_embeddings=163840,
    rope=RopeConfig(rope_type="yarn", factor=40.0, original_max_position_embeddings=4096),
    moe=MoEConfig(
        num_experts=256,
        top_k=8,
        intermediate_size=2048,
        layers=(False,) * 3 + (True,) * 58,
        scoring="sigmoid",
        score_bias=True,
        num_groups=8,
        top_groups=4,
        shared_intermediate_size=2048,
    ),
    mla=MLAConfig(512, 128, 64, 128, q_lora_rank=1536),
)
