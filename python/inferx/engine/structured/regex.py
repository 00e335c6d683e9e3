"""Regular expressions as their authors mean them.

JSON schema's patterns are ECMAScript's, where ``\\d`` and ``\\w`` are of ASCII, and so does whoever asks for
``\\d{4}`` expect it; the grammar library takes them for all of Unicode.
"""

from __future__ import annotations

import re
from typing import Any

# An escape, or the bracket that begins or ends a class.
_PART = re.compile(r"\\(.)|\[\^?\]?|\]", re.DOTALL)
_DIGITS, _WORDS = "0-9", "0-9A-Za-z_"
_OUTSIDE = {"d": f"[{_DIGITS}]", "D": f"[^{_DIGITS}]", "w": f"[{_WORDS}]", "W": f"[^{_WORDS}]"}
_INSIDE = {"d": _DIGITS, "w": _WORDS}


def ascii_classes(regex: str) -> str:
    """``regex`` with the ASCII meaning of ``\\d``, ``\\w`` and, outside of a class, ``\\D`` and ``\\W``."""
    inside = False

    def plain(match: re.Match[str]) -> str:
        nonlocal inside
        if match[1] is not None:
            return (_INSIDE if inside else _OUTSIDE).get(match[1], match[0])
        inside = match[0] != "]"
        return match[0]

    return _PART.sub(plain, regex)


def ascii_patterns(schema: Any) -> Any:
    """A JSON schema with ``ascii_classes`` of its patterns.  Its depth has been checked."""
    if isinstance(schema, list):
        return [ascii_patterns(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {}
    for key, value in schema.items():
        if key == "pattern" and isinstance(value, str):
            value = ascii_classes(value)
        elif key == "patternProperties" and isinstance(value, dict):
            value = {ascii_classes(name): ascii_patterns(item) for name, item in value.items()}
        elif key not in _VERBATIM:
            value = ascii_patterns(value)
        result[key] = value
    return result


# Values, not schemas.
_VERBATIM = ("const", "enum", "default", "examples")
