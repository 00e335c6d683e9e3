"""Checked access to the metadata of a GGUF file."""

from __future__ import annotations

from array import array
from typing import Any

from inferx.errors import LoadError
from inferx.loader.gguf_file import GGUFFile


class Keys:
    """Typed access to ``{architecture}.{key}``; LoadError when a value is missing or of the wrong kind."""

    def __init__(self, file: GGUFFile, architecture: str) -> None:
        self._file = file
        self.path = file.path
        self._prefix = architecture

    def _name(self, key: str) -> str:
        return f"{self._prefix}.{key}"

    def given(self, key: str) -> bool:
        """Whether the key, of a number, is there and not zero, which writers use for "none"."""
        value = self._file.metadata.get(self._name(key))
        if isinstance(value, bool):
            raise self.fail(key, "a number")
        return value is not None and not (isinstance(value, (int, float)) and value == 0)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._file.metadata.get(self._name(key), default)
        if isinstance(value, array) and len(set(value)) == 1:
            value = value[0]  # one entry per layer, all equal
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
            raise LoadError(
                f"{self.path}: metadata {self._name(key)!r} must be a positive integer, got {value}"
            )
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Positive; the bounds keep later arithmetic finite."""
        value: Any = self._file.metadata.get(self._name(key), default)
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not 1e-12 <= value <= 1e12:
            raise LoadError(
                f"{self.path}: metadata {self._name(key)!r} must be a positive number, got {value}"
            )
        return float(value)

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key) if self.given(key) else None

    def optional_number(self, key: str) -> float | None:
        return self.number(key) if self.given(key) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self._file.metadata.get(self._name(key), default)
        if not isinstance(value, bool):
            raise LoadError(f"{self.path}: metadata {self._name(key)!r} must be true or false, got {value}")
        return value

    def fail(self, key: str, expected: str) -> LoadError:
        return LoadError(f"{self.path}: metadata {self._name(key)!r} must be {expected}, got {self.raw(key)}")

    def text(self, key: str, default: str) -> str:
        value = self._file.metadata.get(self._name(key), default)
        if not isinstance(value, str):
            raise LoadError(f"{self.path}: metadata {self._name(key)!r} must be a string, got {value}")
        return value

    def raw(self, key: str) -> Any:
        return self._file.metadata.get(self._name(key))
