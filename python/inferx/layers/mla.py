"""Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024) over a paged cache of latents.

A token's keys and values of all heads are linear in one latent vector c: k_h = W_UK_h c, v_h = W_UV_h c.
So q_h . k_h = (W_UK_h^T q_h) . c, and the sum over values is W_UV_h times the sum over latents: keys and
values are never made, and attention is that of many query heads over one key head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inferx import ops
from inferx.layers.attention import AttentionMetadata
from inferx.layers.linear import Linear
from inferx.layers.norm import RMSNorm
from inferx.layers.placement import CPU, Placement
from inferx.layers.rotary import RotaryRows
from inferx.loader.config import MLAConfig


class MLABuffers:
    """Scratch of one step, shared by all layers."""

    __slots__ = (
        "absorbed",
        "head_output",
        "key_rotary",
        "kv_a",
        "latent",
        "latent_output",
        "output_rows",
        "q_a",
        "query",
        "query_latent",
        "query_nope",
        "query_rotary",
        "query_rows",
    )

    def __init__(self, num_tokens: int, num_heads: int, mla: MLAConfig, placement: Placement = CPU) -> None:
        rank, rotary = mla.kv_lora_rank, mla.qk_rope_head_dim
        self.q_a = placement.empty(num_tokens, mla.q_lora_rank or 0)
        self.query = placement.empty(num_tokens, num_heads, mla.qk_head_dim)
        self.query_rows = self.query.view(num_tokens, num_heads * mla.qk_head_dim)
        self.query_nope, self.query_rotary = self.query.split([mla.qk_nope_head_dim, rotary], dim=2)
        self.kv_a = placement.empty(num_tokens, mla.cache_dim)
        self.latent, self.key_rotary = self.kv_a.split([rank, rotary], dim=1)
        self.absorbed = placement.empty(num_tokens, num_heads, mla.cache_dim)
        self.query_latent = self.absorbed[:, :, :rank]
        self.latent_output = placement.empty(num_tokens, num_heads, rank)
        self.head_output = placement.empty(num_tokens, num_heads, mla.v_head_dim)
        self.output_rows = self.head_output.view(num_tokens, num_heads * mla.v_head_dim)


class HeadMatrices:
    """One matrix for each head, [heads, N, K]; set when the model is loaded."""

    __slots__ = ("weight",)

    weight: ops.PackedExperts | torch.Tensor

    def __call__(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """x: [T, heads, K] -> out [T, heads, N]."""
        return ops.batched_linear(x, self.weight, out=out)


@dataclass
class QueryProjection:
    """hidden -> all heads' queries, by way of a low rank where ``a`` is set: b(norm(a(x)))."""

    b: Linear
    a: Linear | None = None
    norm: RMSNorm | None = None

    def __call__(self, x: torch.Tensor, buffers: MLABuffers) -> None:
        if self.a is not None and self.norm is not None:
            self.a(x, buffers.q_a)
            x = self.norm(buffers.q_a, out=buffers.q_a)
        self.b(x, buffers.query_rows)


@dataclass
class LatentAttention:
    """w_uk: [heads, kv_lora_rank, nope], transposed.  w_uv: [heads, v, kv_lora_rank]."""

    query: QueryProjection
    kv_a: Linear
    kv_norm: RMSNorm
    w_uk: HeadMatrices
    w_uv: HeadMatrices
    output: Linear
    scale: float
    kv_lora_rank: int

    def __call__(
        self,
        x: torch.Tensor,
        rotary: RotaryRows,
        kv_cache: tuple[torch.Tensor, ...],
        meta: AttentionMetadata,
        buffers: MLABuffers,
        out: torch.Tensor,
    ) -> None:
        """x: [T, hidden] -> out, the same shape (may be x itself).

        kv_cache: one tensor, [num_blocks, block_size, 1, kv_lora_rank + rotary].
        """
        cache = kv_cache[0].squeeze(2)
        rank = self.kv_lora_rank
        self.query(x, buffers)
        self.kv_a(x, buffers.kv_a)
        self.kv_norm(buffers.latent, out=buffers.latent)
        size = buffers.key_rotary.shape[1]
        key = buffers.key_rotary.unsqueeze(1)
        ops.rotary_embedding(rotary.index, buffers.query_rotary, key, size, rotary.table)
        ops.concat_and_cache_mla(buffers.latent, buffers.key_rotary, cache, meta.slot_mapping)
        self.w_uk(buffers.query_nope, out=buffers.query_latent)
        buffers.absorbed[:, :, rank:] = buffers.query_rotary
        ops.mla_attention(
            buffers.absorbed,
            cache,
            meta.block_tables,
            meta.cu_seqlens_q,
            meta.seq_lens,
            self.scale,
            value_dim=rank,
            max_query_len=meta.max_query_len,
            out=buffers.latent_output,
        )
        self.w_uv(buffers.latent_output, out=buffers.head_output)
        self.output(buffers.output_rows, out)
