"""A tiny but complete GGUF file, with every part replaceable by tests that break it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, LAYERS = 64, 4, 2, 96, 2
BYTE_TOKENS = [chr(b) for b in range(0x21, 0x7F)]


def byte_level_vocabulary() -> tuple[list[str], list[int], list[str]]:
    """(tokens, types, merges): printable ASCII, the space and newline signs, two merges, two control
    tokens."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTE_TOKENS, "Ġ", "Ċ", "he", "Ġhe"]
    types = [3, 3, 3] + [1] * (len(tokens) - 3)
    return tokens, types, ["h e", "Ġ he"]


def write(
    path: Path,
    *,
    architecture: str = "llama",
    metadata: Callable[[gguf.GGUFWriter], None] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    tokenizer: bool = True,
    pre: str = "smollm",
    scaling: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """metadata: called last, to add keys.  tensors: replaces the default ones."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    if tokenizer:
        tokens, types, merges = byte_level_vocabulary()
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges(merges)
        writer.add_eos_token_id(2)
    if scaling is not None:
        scaling(writer)
    if metadata is not None:
        metadata(writer)
    for name, data in (default_tensors() if tensors is None else tensors).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def default_tensors(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def matrix(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    vocabulary = len(byte_level_vocabulary()[0])
    kv_rows = KV_HEADS * HIDDEN // HEADS
    tensors: dict[str, Any] = {
        "token_embd.weight": matrix(vocabulary, HIDDEN),
        "output_norm.weight": matrix(HIDDEN),
    }
    for layer in range(LAYERS):
        shapes = {
            "attn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv_rows, HIDDEN),
            "attn_v": (kv_rows, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (INTERMEDIATE, HIDDEN),
            "ffn_up": (INTERMEDIATE, HIDDEN),
            "ffn_down": (HIDDEN, INTERMEDIATE),
        }
        tensors.update({f"blk.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()})
    return tensors
