"""DeepSeek V2 and V3: latent attention, leading layers with a plain MLP, then many small experts chosen from
groups, beside one for all tokens."""

from __future__ import annotations

from typing import ClassVar

from inferx.layers.mla import LatentAttention, MLABuffers, QueryProjection
from inferx.loader.config import MLAConfig
from inferx.models.layer import AnyAttention
from inferx.models.moe import MoEDecoder
from inferx.models.rotaries import attention_scale
from inferx.models.weights import WeightPlan

# Of the norms inside of attention, whatever rms_norm_eps the configuration has for the others.
LATENT_NORM_EPS = 1e-6


class DeepseekV2(MoEDecoder):
    architecture = "deepseek_v2"
    hf_architectures = ("DeepseekV2ForCausalLM",)
    # Files of V3 have the name too; the loader tells the two apart.
    gguf_architectures: ClassVar[tuple[str, ...]] = ("deepseek2",)
    parts: ClassVar[tuple[str, ...]] = ("moe", "mla")
    float32_router = True

    @property
    def mla(self) -> MLAConfig:
        mla = self.config.mla
        assert mla is not None, "validate_config asks for it"
        return mla

    def build_attention(self, weights: WeightPlan, prefix: str, index: int) -> AnyAttention:
        config, mla = self.config, self.mla
        heads = config.num_attention_heads
        w_uk, w_uv = weights.latent_up(prefix, heads, mla.kv_lora_rank, mla.qk_nope_head_dim, mla.v_head_dim)
        return LatentAttention(
            query=self.build_query(weights, prefix),
            kv_a=weights.single(
                f"{prefix}.kv_a_proj_with_mqa", mla.cache_dim, config.hidden_size, bias=config.attention_bias
            ),
            kv_norm=weights.norm(f"{prefix}.kv_a_layernorm.weight", mla.kv_lora_rank, LATENT_NORM_EPS),
            w_uk=w_uk,
            w_uv=w_uv,
            output=weights.single(
                f"{prefix}.o_proj", config.hidden_size, heads * mla.v_head_dim, bias=config.attention_out_bias
            ),
            scale=attention_scale(config),
            kv_lora_rank=mla.kv_lora_rank,
        )

    def build_query(self, weights: WeightPlan, prefix: str) -> QueryProjection:
        config, mla = self.config, self.mla
        size, rank = config.num_attention_heads * mla.qk_head_dim, mla.q_lora_rank
        if rank is None:
            return QueryProjection(weights.single(f"{prefix}.q_proj", size, config.hidden_size))
        return QueryProjection(
            a=weights.single(f"{prefix}.q_a_proj", rank, config.hidden_size, bias=config.attention_bias),
            norm=weights.norm(f"{prefix}.q_a_layernorm.weight", rank, LATENT_NORM_EPS),
            b=weights.single(f"{prefix}.q_b_proj", size, rank),
        )

    def attention_buffers(self, num_tokens: int) -> MLABuffers:
        return MLABuffers(num_tokens, self.config.num_attention_heads, self.mla, self.placement)

    @property
    def kv_tensors(self) -> int:
        return 1

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, int, int, int]:
        return (num_blocks, block_size, 1, self.mla.cache_dim)


class DeepseekV3(DeepseekV2):
    architecture = "deepseek_v3"
    hf_architectures = ("DeepseekV3ForCausalLM",)
    gguf_architectures = ()
