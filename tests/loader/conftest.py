"""Shared fixtures of the loader tests."""

from __future__ import annotations

import sys
from pathlib import Path

# tests/models_fixtures.py, the helpers beside this file and the GGUF writer are imported by name.
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "models")]

from models_fixtures import gemma3_gguf, qwen25_gguf, smollm2_gguf  # noqa: E402, F401
