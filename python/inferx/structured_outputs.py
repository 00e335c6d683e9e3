"""StructuredOutputsParams: what a request's output must look like.  Field names follow vLLM's.

Here are its limits too, and the checks that cost next to nothing.  Whether a grammar means anything is found
out by ``inferx.engine.structured``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from inferx.errors import InvalidRequestError

# Of a grammar in any notation, in characters.
MAX_GRAMMAR_CHARS = 256 * 1024
# Of a regular expression, also of a "pattern" inside a schema.
MAX_REGEX_CHARS = 16 * 1024
# Brackets inside brackets: of a regular expression, and of EBNF.
MAX_GRAMMAR_DEPTH = 128
# Objects and lists inside one another in a JSON schema, and how many values it has altogether.
MAX_SCHEMA_DEPTH = 128
MAX_SCHEMA_VALUES = 50_000
MAX_CHOICES = 10_000
# Largest count of a repetition: {n,m} in a regular expression or EBNF, maxLength, maxItems and the like.
MAX_REPETITIONS = 1_000_000
# Integers in a schema: beyond these the grammar library rounds them.  Bounds of 64-bit integers are common.
MAX_EXACT = 1 << 53
MAX_INTEGER = 1 << 63

CONSTRAINTS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
PARAM = "structured_outputs"

_EXACT_KEYWORDS = ("const", "enum", "multipleOf")
_COUNT_KEYWORDS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
# What is skipped when brackets are counted.  Every one may lack its end: then nothing is tried twice, and a
# hostile text takes no longer than another.
_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_EBNF_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"?|\'(?:[^\'\\\n]|\\.)*\'?')
_REGEX_CLASS = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]?", re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_REPETITION = re.compile(r"\{(\d*)(?:,(\d*))?\}|~(\d+)(?:\.\.(\d+))?")


class StructuredOutputsParams(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Exactly one constraint.

    json: a JSON schema, as text or as an object.  json_object: any JSON object.  regex: the whole output
    matches it.  choice: the output is one of these texts.  grammar: EBNF, in Lark's or in llama.cpp's
    (GBNF) notation.  structural_tag: JSON text; free text with tagged parts that follow a schema each.
    disable_any_whitespace: JSON without white space between its tokens.
    """

    json: str | dict[str, Any] | bool | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False

    @property
    def kind(self) -> str:
        """The name of the constraint that is set, of those that are validated."""
        return next(
            name
            for name in CONSTRAINTS
            if getattr(self, name) is not None and (name != "json_object" or self.json_object)
        )

    def validate(self) -> None:
        """Raise InvalidRequestError for what can be told without compiling: types, sizes, depths, counts."""
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if self.json_object is False:
            given.remove("json_object")
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise _invalid(f"must have exactly one of {', '.join(CONSTRAINTS)}, got {got}")
        if not isinstance(self.disable_any_whitespace, bool):
            raise _invalid("disable_any_whitespace must be true or false")
        getattr(self, f"_validate_{given[0]}")()

    def normalised(self) -> StructuredOutputsParams:
        """The same, validated, with JSON as text: what travels to the engine."""
        if isinstance(self.json, (dict, bool)):
            return msgspec.structs.replace(self, json=json.dumps(self.json, ensure_ascii=False))
        return self

    def _validate_json(self) -> None:
        schema = self.json
        if isinstance(schema, str):
            schema = parse_json("json", schema)
        if not isinstance(schema, (dict, bool)):
            raise _invalid(f"json must be a schema: an object, true or false, got {type(schema).__name__}")
        check_schema("json", schema)
        if not isinstance(self.json, str):
            try:
                size = len(json.dumps(schema, allow_nan=False))
            except (TypeError, ValueError) as error:
                raise _invalid(f"json must be JSON: {error}") from None
            check_size("json", size, MAX_GRAMMAR_CHARS)

    def _validate_json_object(self) -> None:
        if self.json_object is not True:
            raise _invalid(f"json_object must be true or false, got {self.json_object!r:.60}")

    def _validate_regex(self) -> None:
        check_text("regex", self.regex, MAX_REGEX_CHARS)
        check_regex("regex", self.regex or "")

    def _validate_choice(self) -> None:
        choices = self.choice
        if not isinstance(choices, list) or not choices:
            raise _invalid("choice must be a list of at least one text")
        check_size("choice", len(choices), MAX_CHOICES, "texts")
        for text in choices:
            check_text("choice", text, MAX_GRAMMAR_CHARS)
        check_size("choice", sum(map(len, choices)), MAX_GRAMMAR_CHARS)

    def _validate_grammar(self) -> None:
        grammar = check_text("grammar", self.grammar, MAX_GRAMMAR_CHARS)
        # Brackets inside quotes do not nest, in either notation.
        bare = _EBNF_QUOTED.sub("", grammar)
        _check_depth("grammar", bare)
        _check_repetitions("grammar", bare)

    def _validate_structural_tag(self) -> None:
        tag = parse_json(
            "structural_tag", check_text("structural_tag", self.structural_tag, MAX_GRAMMAR_CHARS)
        )
        if not isinstance(tag, dict):
            raise _invalid(f"structural_tag must be a JSON object, got {type(tag).__name__}")
        check_schema("structural_tag", tag)


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{PARAM}: {message}", PARAM)


def check_size(name: str, size: int, limit: int, unit: str = "characters") -> None:
    """Raise InvalidRequestError when there are more than ``limit``."""
    if size > limit:
        raise _invalid(f"{name} may have at most {limit} {unit}, got {size}")


def check_text(name: str, text: object, limit: int) -> str:
    """``text``, when it is text of 1 to ``limit`` characters that UTF-8 can express."""
    if not isinstance(text, str) or not text:
        raise _invalid(f"{name} must be text that is not empty, got {text!r:.60}")
    check_size(name, len(text), limit)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _invalid(f"{name} must be text, got half a surrogate pair in it") from None
    return text


def parse_json(name: str, text: str) -> Any:
    """The value of a JSON text that is neither too long nor too deep."""
    check_text(name, text, MAX_GRAMMAR_CHARS)
    depth = 0
    # A text that is no JSON may look deeper or flatter than it is; the parser then says that it is none.
    for bracket in _BRACKET.finditer(_JSON_STRING.sub("", text)):
        depth += 1 if bracket.group() in "[{" else -1
        if depth > MAX_SCHEMA_DEPTH:
            raise _too_deep(name)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"{name} must be JSON: {error!s:.200}") from None


def _too_deep(name: str) -> InvalidRequestError:
    return _invalid(f"{name} may be nested at most {MAX_SCHEMA_DEPTH} levels deep, got more")


def check_schema(name: str, schema: Any) -> None:
    """Depth, size, counts and patterns of a JSON schema (or of JSON with schemas in it)."""
    for values, (depth, key, value) in enumerate(_walk(schema), 1):
        if depth > MAX_SCHEMA_DEPTH:
            raise _too_deep(name)
        if values > MAX_SCHEMA_VALUES:
            raise _invalid(f"{name} may have at most {MAX_SCHEMA_VALUES} values, got more")
        if key in _COUNT_KEYWORDS and isinstance(value, (int, float)) and value > MAX_REPETITIONS:
            raise _invalid(f"{name}: {key} may be at most {MAX_REPETITIONS}, got {value!r:.40}")
        if key == "x-guidance":
            raise _invalid(f"{name}: x-guidance cannot be set")
        if type(value) is int and abs(value) > (MAX_EXACT if key in _EXACT_KEYWORDS else MAX_INTEGER):
            raise _invalid(f"{name}: {key or 'a value'} is too large to be held exactly: {value!r:.40}")
        if key in ("pattern", "regex") and isinstance(value, str):
            check_size(f"{name}: {key}", len(value), MAX_REGEX_CHARS)
            check_regex(f"{name}: {key}", value)


def _walk(value: Any) -> Iterator[tuple[int, str | None, Any]]:
    """Every value inside with its depth and key; without recursion."""
    stack: list[tuple[int, str | None, Any]] = [(0, None, value)]
    while stack:
        depth, key, item = stack.pop()
        yield depth, key, item
        if isinstance(item, dict):
            stack += [(depth + 1, k if isinstance(k, str) else None, v) for k, v in item.items()]
        elif isinstance(item, list):
            # The values of an enum are told apart from other lists by their key.
            stack += [(depth + 1, key if key == "enum" else None, v) for v in item]


def check_regex(name: str, regex: str) -> None:
    """Depth and repetitions of a regular expression."""
    # Neither an escaped bracket nor one inside a character class nests.
    bare = _REGEX_CLASS.sub("", regex)
    _check_depth(name, bare)
    _check_repetitions(name, bare)


def _check_depth(name: str, bare: str) -> None:
    depth = 0
    for bracket in re.finditer(r"[()\[\]]", bare):
        depth += 1 if bracket.group() in "([" else -1
        if depth > MAX_GRAMMAR_DEPTH:
            raise _invalid(
                f"{name} may have at most {MAX_GRAMMAR_DEPTH} brackets inside one another, got more"
            )


def _check_repetitions(name: str, bare: str) -> None:
    for match in _REPETITION.finditer("".join(bare.split())):
        for digits in filter(None, match.groups()):
            if len(digits) > 9 or int(digits) > MAX_REPETITIONS:
                raise _invalid(f"{name}: counts may be at most {MAX_REPETITIONS}, got {digits:.20}")
