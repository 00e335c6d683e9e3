"""Grammars with an answer each, and hostile grammars."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Case(NamedTuple):
    """kind: json, regex, choice or gbnf.  answer: a text that follows the grammar."""

    kind: str
    grammar: Any
    answer: str


_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "email": {"type": "string"},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"enum": ["Paris", "London", "Berlin"]}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "email", "address", "tags"],
    "additionalProperties": False,
}
_PERSON_ANSWER = {
    "name": "Ada Lovelace, Countess of Lovelace",
    "age": 36,
    "email": "ada@example.org",
    "address": {"street": "12 St James's Square", "city": "London"},
    "tags": ["mathematics", "analytical engine", "poetry in numbers"],
}
_WIDE = {
    "type": "object",
    "properties": {f"field_{i}": {"type": "string", "pattern": "^[A-Z][a-z]{2,20}$"} for i in range(60)},
    "required": [f"field_{i}" for i in range(60)],
    "additionalProperties": False,
}
_TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "number"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
_ARITHMETIC = """root ::= term (" " [-+] " " term)*
term ::= factor (" " [*/] " " factor)*
factor ::= [0-9]+ | "(" root ")"
"""

CASES = {
    "json person": Case("json", _PERSON, json.dumps(_PERSON_ANSWER)),
    "json wide, patterns": Case("json", _WIDE, json.dumps({f"field_{i}": "Abcdefgh" for i in range(60)})),
    "json recursive": Case(
        "json",
        _TREE,
        json.dumps(
            {
                "value": 1.5,
                "children": [{"value": i, "children": [{"value": -2, "children": []}]} for i in range(8)],
            }
        ),
    ),
    "any json object": Case("json", {"type": "object"}, json.dumps(_PERSON_ANSWER)),
    "regex date and words": Case(
        "regex",
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}: ([a-z]+ ){5,40}end",
        "2024-02-29: " + "some words here " * 8 + "end",
    ),
    "choice of 1000": Case("choice", [f"category number {i}" for i in range(1000)], "category number 517"),
    "ebnf arithmetic": Case("gbnf", _ARITHMETIC, "(1 + 22) * 333 - (4444 / (5 - 6)) + 7 * (8 + 9)"),
}


def _nested(depth: int) -> str:
    return '{"type":"array","items":' * depth + '{"type":"string"}' + "}" * depth


_MUTUAL = {
    "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
    "$ref": "#/$defs/a",
}
HOSTILE = {
    "arrays 50 deep": ("json", _nested(50)),
    "arrays 1000 deep": ("json", _nested(1000)),
    "arrays 100000 deep": ("json", _nested(100_000)),
    "$ref to itself": ("json", '{"$ref":"#"}'),
    "mutual $ref": ("json", json.dumps(_MUTUAL)),
    "pattern of 60000 brackets": ("json", json.dumps({"type": "string", "pattern": "(" * 60_000})),
    "enum of 100000": ("json", json.dumps({"enum": [f"value {i}" for i in range(100_000)]})),
    "maxLength 10^9": ("json", json.dumps({"type": "string", "maxLength": 10**9})),
    "minItems 10^6": ("json", json.dumps({"type": "array", "items": {"type": "integer"}, "minItems": 10**6})),
    "regex of 60000 brackets": ("regex", "(" * 60_000),
    "regex of nested counts": ("regex", "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"),
    "regex of many optionals": ("regex", "a?" * 20_000),
    "regex that doubles states": ("regex", "(a|b)*a(a|b){24}c"),
    "ebnf of 60000 brackets": ("gbnf", "root ::= " + "(" * 60_000),
    "ebnf left recursion": ("gbnf", 'root ::= root "a" | root root | "b"'),
    "ebnf that doubles": (
        "gbnf",
        "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(2000)) + 'r2000 ::= "a"\n',
    ),
    "ebnf of huge counts": ("gbnf", 'root ::= ("a"{1000000} [b-z]{0,1000000}){1000000}'),
}
