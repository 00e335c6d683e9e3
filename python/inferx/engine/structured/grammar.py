"""From StructuredOutputsParams to the text of a grammar."""

from __future__ import annotations

import json
import re
import sys

from inferx.engine.structured.native import Source
from inferx.engine.structured.regex import ascii_classes, ascii_patterns
from inferx.engine.structured.structural_tags import structural_tag_grammar
from inferx.engine.structured.vocabulary import Vocabulary
from inferx.errors import InvalidRequestError
from inferx.structured_outputs import PARAM, StructuredOutputsParams

_GBNF_RULE = re.compile(r"^[ \t]*([A-Za-z0-9_-]+)[ \t]*::=", re.MULTILINE)
_GBNF_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\.", re.DOTALL)


def source_of(params: StructuredOutputsParams, vocabulary: Vocabulary) -> Source:
    """The constraint of validated ``params``.  InvalidRequestError for a structural tag of a wrong form."""
    compact = params.disable_any_whitespace
    kind = params.kind
    if kind == "json":
        schema = json.loads(params.json) if isinstance(params.json, str) else params.json
        return Source("json", json.dumps(ascii_patterns(schema), ensure_ascii=False), compact)
    if kind == "json_object":
        return Source("json", '{"type": "object"}', compact)
    if kind == "regex":
        return Source("regex", ascii_classes(params.regex or ""))
    if kind == "choice":
        choices = dict.fromkeys(params.choice or ())
        # One terminal: as alternatives of a rule, thousands of them would be thousands of states.
        return Source("lark", "start: CHOICE\nCHOICE: " + " | ".join(map(quoted, choices)))
    if kind == "grammar":
        return Source("ebnf", _plain_escapes(params.grammar or ""))
    return Source(
        "lark", structural_tag_grammar(params.structural_tag or "", vocabulary.special_ids, compact)
    )


def _plain_escapes(grammar: str) -> str:
    """GBNF with its numeric escapes as the characters they mean.  InvalidRequestError for a rule that is
    there twice.  Both get lost in the translation to Lark."""
    if "::=" not in grammar:
        return grammar
    names = _GBNF_RULE.findall(grammar)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequestError(f"{PARAM}: grammar has the rule {twice[:60]!r} twice", PARAM)
    return _GBNF_ESCAPE.sub(_character, grammar)


def _character(match: re.Match[str]) -> str:
    digits = match[1] or match[2] or match[3]
    code = int(digits, 16) if digits else 0
    character = chr(code) if code <= sys.maxunicode else ""
    plain = character.isprintable() and character not in "\"'\\[]^-/"
    return character if plain else match[0]


def quoted(text: str) -> str:
    """A text in Lark's notation, which is that of JSON."""
    return json.dumps(text, ensure_ascii=False)
