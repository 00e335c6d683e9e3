"""Makes ``model_harness`` and the fixtures of the real models importable wherever pytest was started."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from models_fixtures import gemma3_gguf, qwen25_gguf, smollm2_gguf  # noqa: E402

__all__ = ["gemma3_gguf", "qwen25_gguf", "smollm2_gguf"]
