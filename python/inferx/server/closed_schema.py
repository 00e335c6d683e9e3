"""Strict schemas: objects have the properties that they declare, and no others.

Whatever follows the closed schema follows the caller's as well.  OpenAI asks strict schemas to say so
themselves; many do not, and small models then write properties without end.
"""

from __future__ import annotations

from typing import Any

# Where an object's properties are not all in one place, closing one place would forbid the others.
_COMPOSED = frozenset(
    ("allOf", "not", "if", "dependentSchemas", "unevaluatedProperties", "$dynamicRef", "$recursiveRef")
)
_OPEN = frozenset(("additionalProperties", "patternProperties", "propertyNames", "anyOf", "oneOf"))
_SCHEMAS = ("items", "additionalProperties", "contains")
_LISTS = ("prefixItems", "anyOf", "oneOf")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")


def closed(schema: Any) -> Any:
    """``schema`` with every object that declares properties closed; as it is where objects are composed."""
    return schema if _composes(schema) else _closed(schema)


def _composes(value: Any) -> bool:
    if isinstance(value, dict):
        mixed = "properties" in value and not value.keys().isdisjoint(("$ref", "anyOf", "oneOf"))
        return mixed or not _COMPOSED.isdisjoint(value) or any(map(_composes, value.values()))
    return isinstance(value, list) and any(map(_composes, value))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    for key in _SCHEMAS:
        if key in result:
            result[key] = _closed(result[key])
    for key in _LISTS:
        if isinstance(result.get(key), list):
            result[key] = [_closed(item) for item in result[key]]
    for key in _MAPS:
        if isinstance(result.get(key), dict):
            result[key] = {name: _closed(item) for name, item in result[key].items()}
    if "properties" in result and _OPEN.isdisjoint(result):
        result["additionalProperties"] = False
    return result
