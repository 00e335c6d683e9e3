"""Checkpoints: where a model comes from, its configuration, weights, tokenizer and chat template."""

from __future__ import annotations

from pathlib import Path

from inferx.loader.checkpoint import Checkpoint, RawTensor, TensorInfo
from inferx.loader.config import ModelConfig, RopeConfig
from inferx.loader.resolve import DEFAULT_MODEL, resolve_model
from inferx.loader.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "DEFAULT_MODEL",
    "Checkpoint",
    "ModelConfig",
    "RawTensor",
    "RopeConfig",
    "TensorInfo",
    "Tokenizer",
    "load_tokenizer",
    "open_checkpoint",
    "resolve_model",
]


def open_checkpoint(model: str | Path) -> Checkpoint:
    """Opens and validates; reads no tensor.

    model: a directory (Hugging Face layout), a .gguf file, the name ``smollm2-135m-instruct``, or a hub id.
    LoadError names the file, and the tensor where there is one.
    """
    path = resolve_model(model)
    if path.is_dir():
        from inferx.loader.hf import HFCheckpoint

        return HFCheckpoint(path)
    from inferx.loader.gguf_checkpoint import GGUFCheckpoint

    checkpoint = GGUFCheckpoint(path)
    if str(model).lower() == DEFAULT_MODEL and not checkpoint.generation_config:
        # The file has no sampling defaults; these are its model card's.  At 1.0 so small a model rambles.
        checkpoint.generation_config = {"temperature": 0.2, "top_p": 0.9}
    return checkpoint
