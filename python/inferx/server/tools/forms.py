"""The forms that structured output gives to calls: JSON schemas of what must be called, and structural tags
of what may be."""

from __future__ import annotations

import json
from typing import Any

from inferx.server.closed_schema import closed
from inferx.server.tools.choice import ToolPlan

# Keywords whose values are data, not schemas.
_DATA_KEYWORDS = frozenset(("const", "enum", "default", "examples"))


def arguments_schema(function: dict[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments, an object without properties that it does not declare."""
    schema = function.get("parameters")
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **closed(schema)}


def calls_schema(plan: ToolPlan) -> dict[str, Any]:
    """A list of ``{"name", "parameters"}``, at least one, for ``tool_choice: required``."""
    calls = []
    for i, (name, function) in enumerate(plan.functions.items()):
        place = f"#/items/anyOf/{i}/properties/parameters"
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": name},
                    "parameters": _moved(arguments_schema(function), place),
                },
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if plan.single:
        schema["maxItems"] = 1
    return schema


def _moved(schema: Any, place: str) -> Any:
    """``schema`` with its references to itself, now that it stands at ``place`` of a larger one."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = place + value[1:]
        else:
            moved[key] = value if key in _DATA_KEYWORDS else _moved(value, place)
    return moved


def call_tags(plan: ToolPlan, form: str) -> list[dict[str, Any]]:
    """A tag per function, in the model's own format; arguments of strict functions follow their schema,
    those of others are any object."""
    tags = []
    for name, function in plan.functions.items():
        strict = function.get("strict") is True
        begin, end = _around(form, json.dumps(name, ensure_ascii=False))
        schema = arguments_schema(function) if strict else {"type": "object"}
        tags.append({"begin": begin, "content": {"type": "json_schema", "json_schema": schema}, "end": end})
    return tags


TRIGGERS = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]"}


def _around(form: str, name: str) -> tuple[str, str]:
    """What stands before and behind the arguments; ``name`` is JSON."""
    if form == "hermes":
        return f'<tool_call>\n{{"name": {name}, "arguments": ', "}\n</tool_call>"
    if form == "mistral":
        return f'[TOOL_CALLS] [{{"name": {name}, "arguments": ', "}]"
    return f'{{"name": {name}, "parameters": ', "}"


def strict_format(plan: ToolPlan, form: str) -> dict[str, Any] | None:
    """Free text in which every call of a strict function follows its schema; None where the format's calls
    have no mark to tell them by."""
    trigger = TRIGGERS.get(form)
    if trigger is None:
        return None
    tags = call_tags(plan, form)
    return {
        "type": "triggered_tags",
        "triggers": [trigger],
        "tags": tags,
        "at_least_one": False,
        "stop_after_first": plan.single,
    }


def answer_or_call_format(answer: dict[str, Any], plan: ToolPlan, form: str) -> dict[str, Any]:
    """Either an answer of a certain form, or one call."""
    return {"type": "or", "elements": [answer, *({"type": "tag", **tag} for tag in call_tags(plan, form))]}
