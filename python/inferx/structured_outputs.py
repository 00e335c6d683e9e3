"""StructuredOutputsParams: what a request's output must look like.  Field names follow vLLM's."""

from __future__ import annotations

from typing import Any

import msgspec


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
