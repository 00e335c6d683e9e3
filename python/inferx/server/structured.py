"""From a request's fields to what its output must look like: OpenAI's ``response_format``, vLLM's
``structured_outputs`` and its older ``guided_...``; at most one of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from inferx.errors import InvalidRequestError
from inferx.server.closed_schema import closed
from inferx.server.engine_api import AsyncEngine
from inferx.server.errors import ApiError, bad_request, shorten
from inferx.server.protocol import GenerationFields
from inferx.structured_outputs import PARAM, StructuredOutputsParams

GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "structural_tag": "structural_tag",
}
PARAMS_FIELDS = tuple(field.name for field in msgspec.structs.fields(StructuredOutputsParams))
# Of vLLM's: what other back ends do when theirs fails; there is one here.
IGNORED_FIELDS = ("disable_fallback", "backend")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Constraint:
    """``params``, and the field of the request they come from, for errors.

    parts: what this was put together from; an error is that of the part at fault.
    """

    params: StructuredOutputsParams
    param: str
    parts: tuple[Constraint, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether it describes all of the output, reasoning and calls included, and not just an answer."""
        return self.params.kind in ("grammar", "structural_tag") and not self.parts


def constraint_of(body: GenerationFields) -> Constraint | None:
    """The request's constraint, if it has one; ApiError (400) for two of them or one of a wrong form."""
    found = []
    if (params := _response_format(body.response_format)) is not None:
        found.append(Constraint(params, "response_format"))
    if (params := _structured_outputs(body.structured_outputs)) is not None:
        found.append(Constraint(params, PARAM))
    for field, name in GUIDED.items():
        value = getattr(body, field)
        if field == "guided_json_object" and value is False:
            continue
        if value is not None:
            if field == "structural_tag" and isinstance(value, dict):
                value = json.dumps(value, ensure_ascii=False)
            found.append(Constraint(StructuredOutputsParams(**{name: value}), field))
    if len(found) > 1:
        names = " and ".join(constraint.param for constraint in found)
        raise bad_request(f"only one constraint can be given, got {names}", found[1].param)
    if not found:
        return None
    validate(found[0])
    return found[0]


def _response_format(value: Any) -> StructuredOutputsParams | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    if kind == "json_schema":
        return _json_schema(value.get("json_schema"))
    if kind == "structural_tag":
        return StructuredOutputsParams(structural_tag=json.dumps(value, ensure_ascii=False))
    given = value if kind is None else kind
    raise bad_request(
        "response_format.type must be 'text', 'json_object', 'json_schema' or 'structural_tag', "
        f"got {shorten(given)}",
        "response_format" if kind is None else "response_format.type",
    )


def _json_schema(value: Any) -> StructuredOutputsParams:
    where = "response_format.json_schema"
    if not isinstance(value, dict):
        raise bad_request(f"{where} must be an object with name and schema, got {shorten(value)}", where)
    name = value.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise bad_request(
            f"{where}.name must have 1 to 64 letters, digits, _ or -, got {shorten(name)}", f"{where}.name"
        )
    if not isinstance(value.get("strict"), bool | None):
        raise bad_request(
            f"{where}.strict must be true or false, got {shorten(value['strict'])}", f"{where}.strict"
        )
    schema = value.get("schema")
    if schema is None:
        return StructuredOutputsParams(json_object=True)
    if not isinstance(schema, dict | bool):
        raise bad_request(f"{where}.schema must be a JSON schema, got {shorten(schema)}", f"{where}.schema")
    return StructuredOutputsParams(json=closed(schema) if value.get("strict") else schema)


def _structured_outputs(value: Any) -> StructuredOutputsParams | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise bad_request(f"{PARAM} must be an object, got {shorten(value)}", PARAM)
    fields = {k: v for k, v in value.items() if v is not None and k not in IGNORED_FIELDS}
    for name in fields:
        if name not in PARAMS_FIELDS:
            raise bad_request(
                f"{PARAM} has {', '.join(PARAMS_FIELDS)}; {shorten(name)} is not supported", f"{PARAM}.{name}"
            )
    if isinstance(fields.get("structural_tag"), dict):
        fields["structural_tag"] = json.dumps(fields["structural_tag"], ensure_ascii=False)
    return StructuredOutputsParams(**fields)


def validate(constraint: Constraint) -> None:
    """What can be told without compiling; ApiError under the caller's name for it."""
    try:
        constraint.params.validate()
    except InvalidRequestError as error:
        raise _renamed(error, constraint.param) from None


async def check(engine: AsyncEngine, constraint: Constraint) -> StructuredOutputsParams:
    """The parameters for the engine, once it is known that an answer can follow them."""
    params = constraint.params.normalised()
    try:
        await engine.check_structured_outputs(params)
    except InvalidRequestError as error:
        for part in constraint.parts:
            await check(engine, part)
        raise _renamed(error, constraint.param) from None
    return params


def _renamed(error: InvalidRequestError, param: str) -> ApiError:
    message = str(error).removeprefix(f"{PARAM}: ")
    return bad_request(f"{param}: {message}", param)


# ---- as a part of something larger


def as_format(params: StructuredOutputsParams) -> dict[str, Any]:
    """A constraint on an answer as a format of structural tags, to be put beside or behind others."""
    kind = params.kind
    if kind == "json":
        schema = json.loads(params.json) if isinstance(params.json, str) else params.json
        return {"type": "json_schema", "json_schema": schema}
    if kind == "regex":
        return {"type": "regex", "pattern": params.regex}
    if kind == "choice":
        texts = (json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(params.choice or ()))
        return {"type": "grammar", "grammar": "start: " + " | ".join(texts)}
    assert kind == "json_object", kind
    return {"type": "json_schema", "json_schema": {"type": "object"}}


def from_format(value: dict[str, Any], *, compact: bool = False) -> StructuredOutputsParams:
    tag = {"type": "structural_tag", "format": value}
    return StructuredOutputsParams(
        structural_tag=json.dumps(tag, ensure_ascii=False), disable_any_whitespace=compact
    )
