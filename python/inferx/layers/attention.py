"""Causal self-attention over the paged KV cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from inferx import ops
from inferx.layers.linear import Linear, MergedLinear
from inferx.layers.norm import RMSNorm
from inferx.layers.placement import CPU, Placement
from inferx.layers.rotary import RotaryRows
from inferx.layers.vector import Vector


@dataclass(frozen=True)
class AttentionMetadata:
    """Where the tokens of a step lie.  Tokens of all requests are flat, in order.

    block_tables: int32 [batch, max_blocks].  cu_seqlens_q: int32 [batch + 1], first token of each request.
    seq_lens: int32 [batch], tokens in the cache after this step.  slot_mapping: int64 [T], block * block_size
    + offset that token t is written to, -1 to skip.  max_query_len: no request has more tokens than this, or
    None when nobody knows without looking at ``cu_seqlens_q``.
    """

    block_tables: torch.Tensor
    cu_seqlens_q: torch.Tensor
    seq_lens: torch.Tensor
    slot_mapping: torch.Tensor
    max_query_len: int | None = None


class AttentionBuffers:
    """Scratch of one step, shared by all layers (they run one after another)."""

    __slots__ = ("key", "key_rows", "output", "output_rows", "qkv", "query", "query_rows", "value")

    def __init__(
        self, num_tokens: int, num_heads: int, num_kv_heads: int, head_dim: int, placement: Placement = CPU
    ) -> None:
        q, kv = num_heads * head_dim, num_kv_heads * head_dim
        self.qkv = placement.empty(num_tokens, q + 2 * kv)
        self.query_rows, self.key_rows, value = self.qkv.split([q, kv, kv], dim=1)
        self.query = self.query_rows.unflatten(1, (num_heads, head_dim))
        self.key = self.key_rows.unflatten(1, (num_kv_heads, head_dim))
        self.value = value.unflatten(1, (num_kv_heads, head_dim))
        self.output = placement.empty(num_tokens, num_heads, head_dim)
        self.output_rows = self.output.view(num_tokens, q)


class KVScales:
    """What is multiplied with a float8 cache's keys and values; float32, one element or one per KV head.

    None is 1.  Set when the model is loaded, where the checkpoint has them and the cache is float8.
    """

    __slots__ = ("key", "value")

    def __init__(self) -> None:
        self.key: torch.Tensor | None = None
        self.value: torch.Tensor | None = None


@dataclass
class Attention:
    """Grouped-query attention with rotary embedding, optional query/key norms, window and logit soft cap.

    window: keys each query sees, itself included; 0 = all.  softcap: 0 = none.  norm_all_heads: the norms
    are over all heads of a token together, not over each.  clip: queries, keys and values are clamped to +-
    this before they are rotated.  sinks: one more logit per head in the softmax, without a value.
    """

    qkv: Linear | MergedLinear
    output: Linear
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0
    query_norm: RMSNorm | None = None
    key_norm: RMSNorm | None = None
    norm_all_heads: bool = False
    clip: float | None = None
    sinks: Vector | None = None
    scales: KVScales = field(default_factory=KVScales)

    def __call__(
        self,
        x: torch.Tensor,
        rotary: RotaryRows,
        kv_cache: tuple[torch.Tensor, ...],
        meta: AttentionMetadata,
        buffers: AttentionBuffers,
        out: torch.Tensor,
    ) -> None:
        """x: [T, hidden] -> out, the same shape (may be x itself).  kv_cache: keys and values."""
        query, key = buffers.query, buffers.key
        self.qkv(x, buffers.qkv)
        self._normalise(buffers)
        if self.clip is not None:
            buffers.qkv.clamp_(-self.clip, self.clip)
        key_cache, value_cache = kv_cache
        scales = self.scales
        ops.rope_and_cache(
            rotary.index,
            query,
            key,
            buffers.value,
            rotary.table,
            key_cache,
            value_cache,
            meta.slot_mapping,
            k_scale=scales.key,
            v_scale=scales.value,
        )
        ops.paged_attention(
            query,
            key_cache,
            value_cache,
            meta.block_tables,
            meta.cu_seqlens_q,
            meta.seq_lens,
            self.scale,
            window=self.window,
            softcap=self.softcap,
            sinks=None if self.sinks is None else self.sinks.values,
            k_scale=scales.key,
            v_scale=scales.value,
            max_query_len=meta.max_query_len,
            out=buffers.output,
        )
        self.output(buffers.output_rows, out)

    @property
    def input_kinds(self) -> set[bool]:
        return self.qkv.input_kinds

    def record(
        self, step: ops.StepProgram, x: ops.StepInput, rotary: int, layer: int, out: ops.Columns
    ) -> None:
        """rotary, layer: which of the step's rotaries and caches.  Gives back the codes of ``x``."""
        query_size, qkv_size = self.output.weight.shape[1], self.qkv.out_features
        kv_size = (qkv_size - query_size) // 2
        qkv = step.take(qkv_size)
        query, key, value = qkv.split([query_size, kv_size, kv_size])
        self.qkv.record(step, x, qkv)
        step.give_back(x.codes)
        if self.query_norm is not None:
            self.query_norm.record(step, query, query)
        if self.key_norm is not None:
            self.key_norm.record(step, key, key)
        if self.clip is not None:
            step.clamp(qkv, self.clip)
        step.rope_and_cache(query, key, value, self.head_dim, rotary, layer)
        attended = step.take(query_size)
        step.attention(
            query,
            attended,
            self.head_dim,
            kv_size // self.head_dim,
            layer,
            self.scale,
            window=self.window,
            softcap=self.softcap,
            sinks=None if self.sinks is None else self.sinks.values,
        )
        step.give_back(qkv)
        rows = step.input(attended, self.output.input_kinds)
        self.output.record(step, rows, out)
        step.give_back(attended, rows.codes)

    def _normalise(self, buffers: AttentionBuffers) -> None:
        query, key = buffers.query, buffers.key
        if self.norm_all_heads:
            query, key = buffers.query_rows, buffers.key_rows
        if self.query_norm is not None:
            self.query_norm(query, out=query)
        if self.key_norm is not None:
            self.key_norm(key, out=key)
