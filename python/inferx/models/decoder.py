"""The pre-norm decoder that all families share, and the interface that the engine drives.

    h = embed(ids)
    each layer:  h += attention(norm(h));  h += mlp(norm(h))
    logits = head(norm(h))

A family overrides what differs: which tensors make up a layer, and what its configuration implies.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch

from inferx import ops
from inferx.layers.attention import Attention, AttentionBuffers, AttentionMetadata
from inferx.layers.linear import AnyLinear
from inferx.layers.mlp import GATED_ACTIVATIONS, MLP, MLPBuffers
from inferx.layers.norm import RMSNorm
from inferx.layers.rotary import RotaryEmbedding
from inferx.layers.rotary_device import DeviceRotary
from inferx.loader.config import ModelConfig
from inferx.models.layer import AnyAttention, AnyMLP, DecoderLayer, KVCache
from inferx.models.rotaries import attention_scale, layer_rotaries
from inferx.models.validation import validate_config
from inferx.models.weights import ParameterCount, WeightPlan

# On the CPU rotary tables grow as needed.
MAX_POSITIONS = 2**31 - 1


class Decoder:
    """A decoder-only language model; subclasses are the families.

    Not safe for two threads at once (rotary tables grow).  ``config`` is the family's completed
    configuration.
    """

    # Canonical name, the names in config.json's "architectures", and general.architecture of GGUF files.
    architecture: ClassVar[str]
    hf_architectures: ClassVar[tuple[str, ...]]
    gguf_architectures: ClassVar[tuple[str, ...]]
    # Of "moe" and "mla", the parts of a configuration that the family knows.
    parts: ClassVar[tuple[str, ...]] = ()
    # A router's product is in float32 even where activations are not.
    float32_router: ClassVar[bool] = False

    def __init__(self, config: ModelConfig, weights: WeightPlan) -> None:
        """Declares every weight; they are there after ``weights.load()``."""
        self.config = config = self.complete(config)
        validate_config(config, str(weights.source), self.parts)
        self._plan = weights
        self.placement = weights.placement
        self._embedding_scale = _rounded(config.embedding_scale, self.placement.dtype)
        self._embedding = weights.matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        self.layers = [self.build_layer(weights, index) for index in range(config.num_hidden_layers)]
        self.norm = self.build_norm(weights, "model.norm")
        # A head that is stored beside a tied table counts when it differs, as in transformers.
        if config.tie_word_embeddings and weights.is_copy("lm_head.weight", "model.embed_tokens.weight"):
            weights.ignore("lm_head.weight")
            self._head = self._embedding
        else:
            self._head = weights.matrix("lm_head.weight", config.vocab_size, config.hidden_size)
        self.num_positions = 0 if self.placement.dense else MAX_POSITIONS
        self._rotary: list[RotaryEmbedding | DeviceRotary] = list(layer_rotaries(config))
        # Whether steps run as a recorded program where all layers can be recorded.
        self.records_steps = not self.placement.dense and all(layer.can_record for layer in self.layers)
        self._program: ops.StepProgram | None = None

    @classmethod
    def complete(cls, config: ModelConfig) -> ModelConfig:
        """What the family implies and files may leave out."""
        return config

    # -- Building ------------------------------------------------------------------------------------------

    def build_layer(self, weights: WeightPlan, index: int) -> DecoderLayer:
        prefix = f"model.layers.{index}"
        return DecoderLayer(
            attention_norm=self.build_norm(weights, f"{prefix}.input_layernorm"),
            attention=self.build_attention(weights, f"{prefix}.self_attn", index),
            mlp_norm=self.build_norm(weights, f"{prefix}.post_attention_layernorm"),
            mlp=self.build_mlp(weights, f"{prefix}.mlp", index),
        )

    def build_norm(self, weights: WeightPlan, prefix: str, size: int | None = None) -> RMSNorm:
        config = self.config
        size = config.hidden_size if size is None else size
        return weights.norm(f"{prefix}.weight", size, config.rms_norm_eps, config.norm_weight_offset)

    def build_attention(self, weights: WeightPlan, prefix: str, index: int) -> AnyAttention:
        config = self.config
        query_size = config.num_attention_heads * config.head_dim
        query_norm, key_norm = self.build_head_norms(weights, prefix)
        sinks = config.attention_sinks
        return Attention(
            qkv=self.build_qkv(weights, prefix),
            output=weights.single(
                f"{prefix}.o_proj", config.hidden_size, query_size, bias=config.attention_out_bias
            ),
            head_dim=config.head_dim,
            scale=attention_scale(config),
            window=config.window_of(index) or 0,
            softcap=config.attn_logit_softcapping or 0.0,
            query_norm=query_norm,
            key_norm=key_norm,
            norm_all_heads=config.qk_norm_all_heads,
            clip=config.clip_qkv,
            sinks=weights.vector(f"{prefix}.sinks", config.num_attention_heads) if sinks else None,
            scales=weights.kv_scales(prefix, config.num_key_value_heads),
        )

    def build_head_norms(
        self, weights: WeightPlan, prefix: str
    ) -> tuple[RMSNorm, RMSNorm] | tuple[None, None]:
        """Of queries and keys: each head's, or one over all heads."""
        config = self.config
        if not config.qk_norm and not config.qk_norm_all_heads:
            return None, None
        query_heads, key_heads = config.num_attention_heads, config.num_key_value_heads
        if not config.qk_norm_all_heads:
            query_heads = key_heads = 1
        return (
            self.build_norm(weights, f"{prefix}.q_norm", query_heads * config.head_dim),
            self.build_norm(weights, f"{prefix}.k_norm", key_heads * config.head_dim),
        )

    def build_qkv(self, weights: WeightPlan, prefix: str) -> AnyLinear:
        config = self.config
        names = [f"{prefix}.{name}_proj" for name in "qkv"]
        heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        sizes = [count * config.head_dim for count in heads]
        return weights.linear(names, sizes, config.hidden_size, bias=config.attention_bias)

    def build_mlp(self, weights: WeightPlan, prefix: str, index: int) -> AnyMLP:
        config = self.config
        return self.build_plain_mlp(weights, prefix, config.intermediate_size, bias=config.mlp_bias)

    def build_plain_mlp(self, weights: WeightPlan, prefix: str, size: int, *, bias: bool = False) -> MLP:
        """size: of the intermediate."""
        hidden = self.config.hidden_size
        names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
        return MLP(
            gate_up=weights.linear(names, [size] * 2, hidden, bias=bias, gated=True),
            down=weights.single(f"{prefix}.down_proj", hidden, size, bias=bias),
            activation=GATED_ACTIVATIONS[self.config.hidden_act],
        )

    def prepare(self, max_model_len: int) -> None:
        """On a device: rotary tables there, for positions below ``max_model_len``.  Before the first step."""
        self.num_positions = max_model_len
        device = self.placement.device
        moved = {
            rotary: DeviceRotary(rotary, max_model_len, device)
            for rotary in dict.fromkeys(self._rotary)
            if isinstance(rotary, RotaryEmbedding)
        }
        self._rotary = [moved[r] if isinstance(r, RotaryEmbedding) else r for r in self._rotary]

    # -- Running -------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        rope_lens: torch.Tensor | None,
        kv: list[KVCache],
        attn: AttentionMetadata,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """One step over the flat tokens of all requests.

        input_ids, positions, rope_lens: int64 [T].  rope_lens: the sequence length that dynamic and longrope
        frequencies are taken for (a prompt token's is the prompt's length, an output token's its position +
        1); other types ignore it.  kv: the cache of each layer, written at attn.slot_mapping.
        Returns the normalised hidden states [T, hidden_size], in ``out`` where given.
        """
        if len(kv) != self.num_kv_layers:
            raise ValueError(f"kv: expected {self.num_kv_layers} layers' caches, got {len(kv)}")
        if self.records_steps:
            return self._replay(input_ids, positions, rope_lens, kv, attn, out)
        num_tokens = input_ids.shape[0]
        x = ops.embedding(input_ids, self._embedding.weight, out=out)
        if self._embedding_scale is not None:
            x.mul_(self._embedding_scale)
        # Layers add their input to the stream first, so the embedding enters an empty stream: e + 0 = e.
        residual = torch.zeros_like(x)
        rows = {rotary: rotary.rows(positions, rope_lens) for rotary in dict.fromkeys(self._rotary)}
        attention_buffers = self.attention_buffers(num_tokens)
        mlp_buffers = self.mlp_buffers(num_tokens)
        for layer, rotary, cache in zip(self.layers, self._rotary, kv, strict=True):
            layer(x, residual, rows[rotary], cache, attn, attention_buffers, mlp_buffers)
        self.norm.add(x, residual)
        return x

    @torch.inference_mode()
    def forward_logits(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        rope_lens: torch.Tensor | None,
        kv: list[KVCache],
        attn: AttentionMetadata,
        rows: torch.Tensor,
    ) -> torch.Tensor:
        """``compute_logits`` of ``rows`` (int64 [R]) of what ``forward`` returns, together where steps are
        recorded."""
        if not self.records_steps:
            return self.compute_logits(self.forward(input_ids, positions, rope_lens, kv, attn)[rows])
        logits = torch.empty(rows.shape[0], self.config.vocab_size)
        self._replay(input_ids, positions, rope_lens, kv, attn, None, rows, logits)
        return self._capped(logits)

    def _replay(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        rope_lens: torch.Tensor | None,
        kv: list[KVCache],
        attn: AttentionMetadata,
        out: torch.Tensor | None,
        logits_rows: torch.Tensor | None = None,
        logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if self._program is None:
            self._program = self._recorded()
        if out is None:
            out = torch.empty(input_ids.shape[0], self.config.hidden_size)
        rows = [rotary.rows(positions, rope_lens) for rotary in dict.fromkeys(self._rotary)]
        self._program.run(
            out,
            input_ids,
            [(r.index, r.table) for r in rows],
            attn.slot_mapping,
            attn.block_tables,
            attn.cu_seqlens_q,
            attn.seq_lens,
            kv,
            logits_rows,
            logits,
        )
        return out

    def _recorded(self) -> ops.StepProgram:
        """What ``forward`` does layer by layer, as a program."""
        step = ops.StepProgram(self.config.hidden_size)
        x, residual = step.out, step.take(self.config.hidden_size)
        table = self._embedding.weight
        assert isinstance(table, ops.PackedWeight)
        step.embedding(table, x, self._embedding_scale)
        step.zero(residual)
        rotaries = list(dict.fromkeys(self._rotary))
        for i, (layer, rotary) in enumerate(zip(self.layers, self._rotary, strict=True)):
            layer.record(step, x, residual, rotaries.index(rotary), i)
        self.norm.record_add(step, x, residual, {False})
        assert isinstance(self._head.weight, ops.PackedWeight)
        step.head(self._head.weight, self._head.int8)
        return step

    def attention_buffers(self, num_tokens: int) -> Any:
        """Scratch of one step for what ``build_attention`` builds."""
        config = self.config
        heads = config.num_attention_heads, config.num_key_value_heads
        return AttentionBuffers(num_tokens, *heads, config.head_dim, self.placement)

    def mlp_buffers(self, num_tokens: int) -> MLPBuffers:
        """Scratch of one step for what ``build_mlp`` builds."""
        return MLPBuffers(num_tokens, self.config.intermediate_size, self.placement)

    @torch.inference_mode()
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: [R, hidden_size], the rows that need logits -> [R, vocab_size] of the same type."""
        return self._capped(ops.linear(hidden, self._head.weight, int8=self._head.int8))

    def _capped(self, logits: torch.Tensor) -> torch.Tensor:
        """In place."""
        cap = self.config.final_logit_softcapping
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits

    # -- Sizes ---------------------------------------------------------------------------------------------

    @property
    def num_kv_layers(self) -> int:
        return self.config.num_hidden_layers

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in memory; a tied table counts once."""
        return self._plan.weight_bytes

    @property
    def parameters(self) -> ParameterCount:
        return self._plan.parameters

    @property
    def kv_tensors(self) -> int:
        """Tensors that each layer's cache consists of."""
        return 2

    def kv_cache_shape(self, num_blocks: int, block_size: int) -> tuple[int, int, int, int]:
        """Shape of each of them."""
        return (num_blocks, block_size, self.config.num_key_value_heads, self.config.head_dim)

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of one token's cache in all layers, for a cache of ``dtype``."""
        return self.num_kv_layers * self.kv_tensors * math.prod(self.kv_cache_shape(1, 1)) * dtype.itemsize

    def prefix_cache_key(self, prompt_len: int) -> str | None:
        """Requests may share cached blocks only if equal in this: rotated keys can depend on the length."""
        keys = [rotary.prefix_cache_key(prompt_len) for rotary in dict.fromkeys(self._rotary)]
        named = [key for key in keys if key is not None]
        return "|".join(named) if named else None


def _rounded(value: float | None, dtype: torch.dtype) -> float | None:
    """Rounded to ``dtype``: transformers keeps the embedding's scale in the type of the weights."""
    return None if value is None else float(torch.tensor(value, dtype=dtype))
