"""From StructuredOutputsParams to the text of a grammar."""

from __future__ import annotations

import json

from inferx.engine.structured.native import Source
from inferx.engine.structured.structural_tags import structural_tag_grammar
from inferx.engine.structured.vocabulary import Vocabulary
from inferx.structured_outputs import StructuredOutputsParams


def source_of(params: StructuredOutputsParams, vocabulary: Vocabulary) -> Source:
    """The constraint of validated ``params``.  InvalidRequestError for a structural tag of a wrong form."""
    compact = params.disable_any_whitespace
    kind = params.kind
    if kind == "json":
        text = params.json if isinstance(params.json, str) else json.dumps(params.json, ensure_ascii=False)
        return Source("json", text, compact)
    if kind == "json_object":
        return Source("json", '{"type": "object"}', compact)
    if kind == "regex":
        return Source("regex", params.regex or "")
    if kind == "choice":
        choices = dict.fromkeys(params.choice or ())
        return Source("lark", "start: " + " | ".join(map(quoted, choices)))
    if kind == "grammar":
        return Source("ebnf", params.grammar or "")
    return Source(
        "lark", structural_tag_grammar(params.structural_tag or "", vocabulary.special_ids, compact)
    )


def quoted(text: str) -> str:
    """A text in Lark's notation, which is that of JSON."""
    return json.dumps(text, ensure_ascii=False)
