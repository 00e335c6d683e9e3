"""One layer of a decoder, whatever its attention and its MLP are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from inferx import ops
from inferx.layers.attention import Attention, AttentionMetadata
from inferx.layers.mlp import MLP
from inferx.layers.norm import RMSNorm
from inferx.layers.rotary import RotaryRows

# The tensors of one layer's cache: keys and values, or one of latents.
KVCache = tuple[torch.Tensor, ...]


class AnyAttention(Protocol):
    """``Attention`` or ``LatentAttention``; the family that builds it makes the buffers that fit."""

    def __call__(
        self,
        x: torch.Tensor,
        rotary: RotaryRows,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        buffers: Any,
        out: torch.Tensor,
    ) -> None: ...


class AnyMLP(Protocol):
    """``MLP`` or ``MoE``; likewise."""

    def __call__(self, x: torch.Tensor, buffers: Any, out: torch.Tensor) -> None: ...


@dataclass
class DecoderLayer:
    """One layer.  The ``*_output_norm`` are Gemma's norms on a branch before it joins the residual stream."""

    attention_norm: RMSNorm
    attention: AnyAttention
    mlp_norm: RMSNorm
    mlp: AnyMLP
    attention_output_norm: RMSNorm | None = None
    mlp_output_norm: RMSNorm | None = None

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        rotary: RotaryRows,
        kv_cache: KVCache,
        meta: AttentionMetadata,
        attention_buffers: Any,
        mlp_buffers: Any,
    ) -> None:
        """In place: residual += x (what the layer before produced), then x = this layer's MLP output."""
        self.attention_norm.add(x, residual)
        self.attention(x, rotary, kv_cache, meta, attention_buffers, out=x)
        if self.attention_output_norm is not None:
            self.attention_output_norm(x, out=x)
        self.mlp_norm.add(x, residual)
        self.mlp(x, mlp_buffers, out=x)
        if self.mlp_output_norm is not None:
            self.mlp_output_norm(x, out=x)

    @property
    def can_record(self) -> bool:
        return type(self.attention) is Attention and type(self.mlp) is MLP

    def record(
        self, step: ops.StepProgram, x: ops.Columns, residual: ops.Columns, rotary: int, layer: int
    ) -> None:
        """The same as ops of a program.  rotary, layer: which of the step's rotaries and caches."""
        attention, mlp = self.attention, self.mlp
        assert isinstance(attention, Attention)
        assert isinstance(mlp, MLP)
        rows = self.attention_norm.record_add(step, x, residual, attention.input_kinds)
        attention.record(step, rows, rotary, layer, x)
        if self.attention_output_norm is not None:
            self.attention_output_norm.record(step, x, x)
        rows = self.mlp_norm.record_add(step, x, residual, mlp.input_kinds)
        mlp.record(step, rows, x)
        if self.mlp_output_norm is not None:
            self.mlp_output_norm.record(step, x, x)
