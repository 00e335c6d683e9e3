"""Shared fixtures of the loader tests."""

from __future__ import annotations

import sys
from pathlib import Path

# tests/models_fixtures.py and the helpers beside this file are imported by name.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from models_fixtures import gemma3_gguf, qwen25_gguf, smollm2_gguf  # noqa: E402, F401
