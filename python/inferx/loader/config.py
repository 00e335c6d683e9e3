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
class ModelConfig:
    """A decoder-only transformer.  ``architecture`` picks the family: see ``models.registry``."""

    architecture: str  # canonical: llama mistral qwen2 qwen3 gemma3 phi3
    vocab_size: int  # rows of the embedding table (may exceed the tokenizer's)
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"  # silu, gelu, gelu_pytorch_tanh
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
