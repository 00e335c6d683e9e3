"""Decoder-only language models, one file per family."""

from __future__ import annotations

from inferx.models.decoder import Decoder as Model
from inferx.models.registry import build_model, model_class

__all__ = ["Model", "build_model", "model_class"]
