"""ModelConfig: what a decoder-only model needs to be built, whatever file it came from.

Loaders fill it from a Hugging Face ``config.json`` or from GGUF metadata; models read nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]


@dataclass(frozen=True)
class RopeConfig:
    """Rotary embedding parameters; names follow transformers' ``rope_parameters``."""

    theta: float = 10000.0
    rope_type: RopeType = "default"
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float = 1.0
    # llama3
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    # yarn
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    # longrope
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    # GGUF stores some scalings (llama3's) as a table: inv_freq[i] is divided by freq_factors[i].  Empty =
    # none. Combines with any rope_type (in practice "default").
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class MoEConfig:
    """Routed experts in the place of MLPs.

    The router's logits become scores; the ``top_k`` best experts of a token run, and their outputs are summed
    with the scores as weights.  A shared expert runs for every token beside them.
    """

    num_experts: int
    top_k: int
    intermediate_size: int  # of one routed expert
    layers: tuple[bool, ...]  # one entry per layer: whether it has experts or a plain MLP
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool = False  # weights of the chosen experts sum to 1 (before the factor)
    routed_scaling_factor: float = 1.0
    score_bias: bool = False  # DeepSeek-V3's bias on the scores: it chooses and does not weigh
    # DeepSeek: experts in groups of equal size, of which the best top_groups compete.  1 = no groups.
    num_groups: int = 1
    top_groups: int = 1
    router_bias: bool = False
    expert_bias: bool = False
    shared_intermediate_size: int = 0  # 0 = no shared expert
    shared_gate: bool = False  # Qwen2-MoE: the shared expert's output times sigmoid(gate . x)


@dataclass(frozen=True)
class MLAConfig:
    """Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024).

    A token's keys and values of all heads come from one latent vector, which is what the cache holds
    (``cache_dim`` values a token and layer), beside one rotated key that the heads share.
    """

    kv_lora_rank: int  # of the latent
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None  # None: queries are projected in one step

    @property
    def cache_dim(self) -> int:
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer.  ``architecture`` picks the family: see ``models.registry``."""

    # canonical: llama mistral qwen2 qwen3 gemma3 phi3 mixtral qwen2_moe qwen3_moe olmoe deepseek_v2
    # deepseek_v3 gpt_oss
    architecture: str
    vocab_size: int  # rows of the embedding table (may exceed the tokenizer's)
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"  # silu, gelu, gelu_pytorch_tanh; swigluoai for the experts of gpt-oss
    rope: RopeConfig = field(default_factory=RopeConfig)
    rope_local: RopeConfig | None = None  # sliding layers of Gemma 3 have their own theta
    tie_word_embeddings: bool = False
    attention_bias: bool = False  # q, k, v
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    # One entry per layer, "full_attention" or "sliding_attention"; empty = all full.
    layer_types: tuple[str, ...] = ()
    query_pre_attn_scalar: float | None = None  # Gemma: scale = this ** -0.5; None = head_dim ** -0.5
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    embedding_scale: float | None = None  # Gemma: sqrt(hidden_size)
    # 1.0 where the file stores w and the norm multiplies by (1 + w) (Gemma from Hugging Face).
    norm_weight_offset: float = 0.0
    dtype: str = "float32"  # of the checkpoint's unquantised weights: float32, bfloat16, float16
    moe: MoEConfig | None = None
    mla: MLAConfig | None = None  # then head_dim is qk_head_dim, and rotary covers qk_rope_head_dim
    qk_norm_all_heads: bool = False  # OLMoE: one norm over all query heads, and one over all key heads
    clip_qkv: float | None = None  # OLMoE: queries, keys and values are clamped to +- this
    attention_sinks: bool = False  # gpt-oss: one more logit per head in the softmax, without a value
    swiglu_alpha: float = 1.702  # of swigluoai: (up + 1) * gate * sigmoid(alpha * gate) ...
    swiglu_limit: float = 7.0  # ... with gate clamped from above and up to +- this
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()  # union of all that the files declare

    @property
    def num_queries_per_kv(self) -> int:
        return self.num_attention_heads // self.num_key_value_heads

    def window_of(self, layer: int) -> int | None:
        """Tokens each query of this layer sees, itself included; None = all before it."""
        if self.layer_types:
            return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None
        return self.sliding_window
