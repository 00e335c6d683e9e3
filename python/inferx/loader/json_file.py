"""Small JSON files beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from inferx.errors import LoadError

MAX_JSON_BYTES = 1 << 26
MAX_TOKENIZER_BYTES = 1 << 29


def read_text(path: Path, limit: int = MAX_JSON_BYTES) -> str:
    """LoadError when the file is missing, too large or not UTF-8."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise LoadError(f"{path}: {size} bytes are more than the {limit} expected at most")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise LoadError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise LoadError(f"{path}: not valid UTF-8") from error


def read_json(path: Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """A JSON object.  LoadError when it is missing or something else."""
    try:
        value = json.loads(read_text(path, limit))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise LoadError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value


def read_optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
