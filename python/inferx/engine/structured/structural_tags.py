"""Structural tags: free text in which, behind certain triggers, tagged parts follow a schema.

Two forms, both JSON with "type": "structural_tag":

- ``{"structures": [{"begin", "schema", "end"}, ...], "triggers": [...]}``;
- ``{"format": F}``, F being one of
  ``{"type": "const_string", "value"}``, ``{"type": "json_schema", "json_schema"}``,
  ``{"type": "regex", "pattern"}``, ``{"type": "grammar", "grammar"}`` (Lark, one ``start`` rule),
  ``{"type": "any_text"}``, ``{"type": "sequence", "elements": [F, ...]}``,
  ``{"type": "or", "elements": [F, ...]}``, ``{"type": "tag", "begin", "content": F, "end"}`` and
  ``{"type": "triggered_tags", "triggers", "tags": [tag, ...], "at_least_one", "stop_after_first"}``.

A special token's text in a begin, end or trigger is that token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from inferx.engine.structured.native import schema_options
from inferx.engine.structured.regex import ascii_classes, ascii_patterns
from inferx.errors import InvalidRequestError
from inferx.structured_outputs import PARAM, parse_json

MAX_TAGS = 1024


def structural_tag_grammar(text: str, special_ids: Mapping[str, int], compact: bool = False) -> str:
    """The Lark grammar; InvalidRequestError names the field that is missing or wrong."""
    tag = parse_json("structural_tag", text)
    if not isinstance(tag, dict):
        raise _wrong("structural_tag", "an object", tag)
    writer = _Writer(special_ids, compact)
    if "format" in tag:
        start = writer.format(tag["format"], "format")
    elif "structures" in tag:
        tags = [
            {"begin": s.get("begin"), "content": {"type": "json_schema", "json_schema": s.get("schema")},
             "end": s.get("end", "")} if isinstance(s, dict) else s
            for s in _list(tag, "structures", "structural_tag")
        ]  # fmt: skip
        start = writer.format(
            {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}, "structural_tag"
        )
    else:
        raise InvalidRequestError(f'{PARAM}: structural_tag must have "structures" or "format"', PARAM)
    return "\n".join(["%llguidance {}", f"start: {start}", *writer.rules, ""])


def _wrong(where: str, expected: str, got: object) -> InvalidRequestError:
    return InvalidRequestError(f"{PARAM}: {where} must be {expected}, got {got!r:.60}", PARAM)


def _list(value: dict[str, Any], name: str, where: str) -> list[Any]:
    items = value.get(name)
    if not isinstance(items, list) or not 1 <= len(items) <= MAX_TAGS:
        raise _wrong(f"{where}.{name}", f"a list of 1 to {MAX_TAGS} entries", items)
    return items


def _text(value: dict[str, Any], name: str, where: str, *, empty: bool = True) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not (text or empty):
        raise _wrong(f"{where}.{name}", "text" if empty else "text that is not empty", text)
    return text


class _Writer:
    """Writes the rules of one grammar.  The depth of what it is given is bounded by ``parse_json``."""

    def __init__(self, special_ids: Mapping[str, int], compact: bool) -> None:
        self.rules = ["ANY_TEXT: /(.|\\n)*/"]
        self._special_ids = special_ids
        names = sorted((name for name in special_ids if name), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, names))})") if names else None
        self._guidance = schema_options(compact)

    def _rule(self, body: str, flags: str = "") -> str:
        name = f"rule_{len(self.rules)}"
        self.rules.append(f"{name}{flags}: {body}")
        return name

    def _literal(self, text: str) -> str:
        """A text; the special tokens in it as such."""
        parts = self._split.split(text) if self._split is not None else [text]
        return " ".join(
            f"<[{self._special_ids[part]}]>"
            if part in self._special_ids
            else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        )

    def format(self, value: Any, where: str) -> str:
        """The name of the rule for a format."""
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        kind = value.get("type")
        method = getattr(self, f"_{kind}_format", None) if isinstance(kind, str) else None
        if method is None:
            raise _wrong(f"{where}.type", "a known format", kind)
        return self._rule(method(value, where))

    def _any_text_format(self, value: dict[str, Any], where: str) -> str:
        return "ANY_TEXT"

    def _const_string_format(self, value: dict[str, Any], where: str) -> str:
        return self._literal(_text(value, "value", where))

    def _json_schema_format(self, value: dict[str, Any], where: str) -> str:
        schema = value.get("json_schema")
        if schema is True or schema == {}:
            schema = {}
        if not isinstance(schema, dict):
            raise _wrong(f"{where}.json_schema", "a schema (an object)", schema)
        schema = {**ascii_patterns(schema), "x-guidance": self._guidance}
        return f"%json {json.dumps(schema, ensure_ascii=False)}"

    def _regex_format(self, value: dict[str, Any], where: str) -> str:
        pattern = ascii_classes(_text(value, "pattern", where, empty=False))
        name = f"REGEX_{len(self.rules)}"
        escaped = re.sub(r"(\\.)|/", lambda m: m.group(1) or r"\/", pattern, flags=re.DOTALL)
        self.rules.append(f"{name}: /{escaped}/".replace("\n", r"\n"))
        return name

    def _grammar_format(self, value: dict[str, Any], where: str) -> str:
        return "%lark {\n" + _text(value, "grammar", where, empty=False) + "\n}"

    def _sequence_format(self, value: dict[str, Any], where: str) -> str:
        items = _list(value, "elements", where)
        return " ".join(self.format(item, f"{where}.elements[{i}]") for i, item in enumerate(items))

    def _or_format(self, value: dict[str, Any], where: str) -> str:
        items = _list(value, "elements", where)
        return " | ".join(self.format(item, f"{where}.elements[{i}]") for i, item in enumerate(items))

    def _tag_format(self, value: dict[str, Any], where: str) -> str:
        return self._tag_body(value, where, _text(value, "begin", where))

    def _tag_body(self, value: dict[str, Any], where: str, begin: str) -> str:
        """``begin`` (or what is left of it), the content and the end."""
        end = value.get("end", "")
        ends = end if isinstance(end, list) else [end]
        if not ends or not all(isinstance(e, str) for e in ends):
            raise _wrong(f"{where}.end", "text, or a list of texts", end)
        content = value.get("content")
        closing = " | ".join(self._literal(e) or '""' for e in ends)
        if (
            isinstance(content, dict)
            and content.get("type") == "any_text"
            and all(ends)
            and "<[" not in closing
        ):
            # Up to the first end.  (A special token is no text, so nothing has to be told apart there.)
            inner = self._rule(f"ANY_TEXT ({closing})", "[lazy]")
            return f"{self._literal(begin)} {inner}"
        return f"{self._literal(begin)} {self.format(content, where + '.content')} ({closing})"

    def _triggered_tags_format(self, value: dict[str, Any], where: str) -> str:
        triggers = _list(value, "triggers", where)
        for i, trigger in enumerate(triggers):
            if not isinstance(trigger, str) or not trigger:
                raise _wrong(f"{where}.triggers[{i}]", "text that is not empty", trigger)
        by_trigger: dict[str, list[str]] = {}
        for i, tag in enumerate(_list(value, "tags", where)):
            place = f"{where}.tags[{i}]"
            if not isinstance(tag, dict):
                raise _wrong(place, "an object", tag)
            begin = _text(tag, "begin", place, empty=False)
            trigger = next((t for t in triggers if begin.startswith(t)), None)
            if trigger is None:
                raise _wrong(
                    f"{place}.begin", f"text that starts with one of the triggers {triggers!r:.100}", begin
                )
            rest = self._rule(self._tag_body(tag, place, begin[len(trigger) :]))
            by_trigger.setdefault(trigger, []).append(rest)
        tags = " | ".join(self._triggered(trigger, rests) for trigger, rests in by_trigger.items())
        least, one = value.get("at_least_one") is True, value.get("stop_after_first") is True
        if one:
            return f"({tags})" if least else f"({tags}) | ANY_TEXT"
        return f"({tags}){'+' if least else '*'} ANY_TEXT"

    def _triggered(self, trigger: str, rests: list[str]) -> str:
        """Text up to a trigger, and what may follow that."""
        if trigger in self._special_ids:
            head = f"ANY_TEXT {self._literal(trigger)}"
        else:
            head = self._rule(f"ANY_TEXT {json.dumps(trigger, ensure_ascii=False)}", "[lazy]")
        return f"{head} ({' | '.join(rests)})"
