"""Checked access to the keys of a ``config.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inferx.errors import LoadError

MAX_SIZE = 1 << 31
# From here on, halfway between float32's largest number and 2^128, the nearest float32 is infinity.
FLOAT32_END = 2.0**128 - 2.0**103


class Values:
    """Checked access to the keys of a config.json with an architecture's defaults."""

    def __init__(self, data: dict[str, Any], defaults: dict[str, Any], path: Path) -> None:
        self._data, self._defaults, self.path = data, defaults, path

    def get(self, key: str) -> Any:
        """Absent: the default.  An explicit null stays None."""
        return self._data[key] if key in self._data else self._defaults.get(key)

    def spelling(self, *keys: str) -> str:
        """The first of several names of one thing that the file has; the first of all where it has none."""
        return next((key for key in keys if key in self._data), keys[0])

    def fail(self, key: str, expected: str) -> LoadError:
        return LoadError(f"{self.path}: {key}: expected {expected}, got {str(self.get(key))[:100]}")

    def size(self, key: str) -> int:
        value = self.get(key)
        if type(value) is not int or not 0 < value < MAX_SIZE:
            raise self.fail(key, "a positive integer")
        return value

    def count(self, key: str) -> int:
        """Null counts as zero."""
        value = self.get(key)
        if value is not None and (type(value) is not int or not 0 <= value < MAX_SIZE):
            raise self.fail(key, "an integer that is not negative")
        return value or 0

    def optional_size(self, key: str) -> int | None:
        return None if self.get(key) is None else self.size(key)

    def number(self, key: str) -> float:
        value = self.get(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < FLOAT32_END:
            raise self.fail(key, "a positive number in float32's range")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return bool(value)
