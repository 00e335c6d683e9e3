"""Checkpoint: one interface over Hugging Face directories and GGUF files.

Tensor names are Hugging Face's (``model.layers.0.self_attn.q_proj.weight``) in both cases, and rows of
q_proj and k_proj are in the order that neox-style rotary wants, so models know nothing of the format.
Experts come one by one (``model.layers.0.mlp.experts.7.up_proj.weight``), whatever stacks the file has;
keys and values of latent attention as kv_b_proj, or taken apart as k_b_proj ``[heads * latent, nope]`` and
v_b_proj ``[heads * v, latent]``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from inferx.loader.config import ModelConfig

# Element types with one value per element; all others are GGML block formats.
FLOAT_TYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class TensorInfo:
    """shape: logical, row-major, in elements (``[out_features, in_features]`` for a linear weight).
    dtype: F32, F16, BF16, or a GGML block type by its GGML name (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K,
    Q6_K, MXFP4).  file: where it lies, for messages."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path

    @property
    def quantised(self) -> bool:
        return self.dtype not in FLOAT_TYPES


@dataclass(frozen=True)
class RawTensor:
    """A tensor as stored.  ``data`` is a float tensor of ``info.shape``, or for block formats uint8
    ``[rows, bytes per row]``.  It may be a read-only view of a mapped file: copy before you write."""

    info: TensorInfo
    data: torch.Tensor


class Checkpoint(ABC):
    """An opened checkpoint.  Opening validates every size against the files before any tensor is read."""

    path: Path
    config: ModelConfig
    tensors: Mapping[str, TensorInfo]
    # generation_config.json as it is (temperature, top_p, eos_token_id, ...), or {}.
    generation_config: dict[str, Any]
    chat_template: str | None
    # bos_token, eos_token, ... as chat templates see them, where the files spell them out.
    special_tokens: dict[str, str]

    @abstractmethod
    def read(self, name: str) -> RawTensor:
        """The tensor of that canonical name.  LoadError when absent or damaged."""

    @abstractmethod
    def tokenizer_json(self) -> str:
        """A ``tokenizers`` JSON that encodes exactly as the model's own tokenizer."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Bytes of all tensors as stored."""

    def release(self) -> None:  # noqa: B027
        """Everything has been read: memory that mapped files take is given back.  Reading again is fine."""

    @abstractmethod
    def close(self) -> None: ...
