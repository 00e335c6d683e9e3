"""Items of a response's input: checked and brought into the form in which they are kept and listed.

An item is a message, a function call, its output, or reasoning.  The kept form is the API's own, always with
an id, a status and a list of parts, so that what was sent, what was generated and what is listed look alike.
"""

from __future__ import annotations

import uuid
from typing import Any

from inferx.server import limits_table as limits
from inferx.server.errors import ApiError, bad_request, shorten

Item = dict[str, Any]

ROLES = ("user", "assistant", "system", "developer")
# Text goes by several names, depending on who wrote it.
TEXT_PARTS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
MAX_ID_CHARS = limits.LABEL_CHARS.most


def new_item_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def input_items(value: Any) -> list[Item]:
    """``input`` as items; ApiError naming the one that is malformed or not supported."""
    if isinstance(value, str):
        return [_message({"role": "user", "content": value}, "input")]
    if not isinstance(value, list) or not value:
        given = "nothing" if value is None else shorten(value)
        raise bad_request(f"input: must be a string or a list of items, and not empty; got {given}", "input")
    limits.MESSAGES.check(len(value), "input")
    return [_item(item, f"input[{i}]") for i, item in enumerate(value)]


def _item(value: Any, where: str) -> Item:
    if not isinstance(value, dict):
        raise bad_request(f"{where}: must be an object, got {shorten(value)}", where)
    kind = value.get("type")
    if kind is None:
        kind = "message"  # the short form of a message has no type
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise bad_request(
            f"{where}.type: items are {', '.join(_READERS)}; {shorten(kind)} is not supported",
            f"{where}.type",
        )
    return read(value, where)


def _message(value: dict[str, Any], where: str) -> Item:
    role = value.get("role")
    if role not in ROLES:
        raise bad_request(f"{where}.role: must be one of {ROLES}, got {shorten(role)}", f"{where}.role")
    parts = _parts(value.get("content"), f"{where}.content")
    if role == "assistant":
        content = [{"type": "output_text", "text": text, "annotations": []} for text in parts]
    else:
        content = [{"type": "input_text", "text": text} for text in parts]
    return {
        "type": "message",
        "id": _id(value, where, "msg"),
        "status": "completed",
        "role": role,
        "content": content,
    }


def _function_call(value: dict[str, Any], where: str) -> Item:
    return {
        "type": "function_call",
        "id": _id(value, where, "fc"),
        "status": "completed",
        "call_id": _text(value, "call_id", where, MAX_ID_CHARS),
        "name": _text(value, "name", where, MAX_ID_CHARS),
        "arguments": _text(value, "arguments", where, None),
    }


def _function_call_output(value: dict[str, Any], where: str) -> Item:
    output = value.get("output")
    if not isinstance(output, str):
        texts = _parts(output, f"{where}.output")
        output = [{"type": "input_text", "text": text} for text in texts]
    return {
        "type": "function_call_output",
        "id": _id(value, where, "fco"),
        "status": "completed",
        "call_id": _text(value, "call_id", where, MAX_ID_CHARS),
        "output": output,
    }


def _reasoning(value: dict[str, Any], where: str) -> Item:
    content = value.get("content")
    summary = value.get("summary")
    return {
        "type": "reasoning",
        "id": _id(value, where, "rs"),
        "status": "completed",
        "summary": [
            {"type": "summary_text", "text": text} for text in _parts(summary or [], f"{where}.summary")
        ],
        "content": [
            {"type": "reasoning_text", "text": text} for text in _parts(content or [], f"{where}.content")
        ],
    }


_READERS = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _function_call_output,
    "reasoning": _reasoning,
}


def _parts(content: Any, where: str) -> list[str]:
    """The texts of a string or of a list of text parts."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        given = "nothing" if content is None else shorten(content)
        raise bad_request(f"{where}: must be a string or a list of parts, got {given}", where)
    return [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    field = TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise bad_request(
            f"{where}.type: only text parts (input_text, output_text) are supported, got {shorten(kind)}",
            f"{where}.type",
        )
    text = part.get(field)
    if not isinstance(text, str):
        raise bad_request(f"{where}.{field}: must be a string, got {shorten(text)}", f"{where}.{field}")
    return text


def _text(value: dict[str, Any], name: str, where: str, limit: int | None) -> str:
    text = value.get(name)
    where = f"{where}.{name}"
    if not isinstance(text, str):
        raise bad_request(f"{where}: must be a string, got {shorten(text)}", where)
    if limit is not None and not 1 <= len(text) <= limit:
        raise bad_request(f"{where}: must have 1 to {limit} characters, got {len(text)}", where)
    return text


def _id(value: dict[str, Any], where: str, prefix: str) -> str:
    """The caller's own id of an item that is sent back, else a new one."""
    given = value.get("id")
    if given is None:
        return new_item_id(prefix)
    if not isinstance(given, str) or not 1 <= len(given) <= MAX_ID_CHARS:
        raise _bad_id(given, where)
    return given


def _bad_id(given: Any, where: str) -> ApiError:
    return bad_request(
        f"{where}.id: must be a string of 1 to {MAX_ID_CHARS} characters, got {shorten(given)}", f"{where}.id"
    )
