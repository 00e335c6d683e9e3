"""The fields that constrain an output: what they map to, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_engine import FakeEngine

from inferx.server.closed_schema import closed
from inferx.server.errors import ApiError
from inferx.server.protocol import CompletionRequest, parse_request
from inferx.server.structured import constraint_of
from inferx.structured_outputs import StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}],
    "triggers": ["<a>"],
}


def of(**fields: Any) -> Any:
    return constraint_of(parse_request(CompletionRequest, {"prompt": "x", **fields}))


def named(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": schema}}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": named(SCHEMA)}, {"json": {**SCHEMA, "additionalProperties": False}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            {"json": SCHEMA},
        ),
        ({"response_format": named(None)}, {"json_object": True}),
        ({"response_format": TAG}, {"structural_tag": json.dumps(TAG)}),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, {"json": json.dumps(SCHEMA)}),
        ({"structured_outputs": {"regex": "a+", "choice": None}}, {"regex": "a+"}),
        (
            {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}},
            {"json_object": True, "disable_any_whitespace": True},
        ),
        ({"structured_outputs": {"structural_tag": TAG}}, {"structural_tag": json.dumps(TAG)}),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_regex": "a|b"}, {"regex": "a|b"}),
        ({"guided_json_object": True}, {"json_object": True}),
        ({"guided_json_object": False, "guided_regex": "a|b"}, {"regex": "a|b"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        (
            {"guided_grammar": 'root ::= "a"', "response_format": {"type": "text"}},
            {"grammar": 'root ::= "a"'},
        ),
    ],
)
def test_fields_map_to_parameters(fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert of(**fields).params == StructuredOutputsParams(**wanted)


def test_no_constraint() -> None:
    assert of() is None
    assert of(response_format={"type": "text"}, guided_json=None, structured_outputs=None) is None
    assert of(guided_json_object=False) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": "yes"}}},
            "response_format.json_schema.strict",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": []}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs"),
        ({"guided_regex": "a" * 20_000}, "guided_regex"),
        ({"guided_choice": [1]}, "guided_choice"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
        ),
    ],
)
def test_malformed_and_conflicting_fields(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        of(**fields)
    assert error.value.status == 400
    assert error.value.param == param
    assert (
        error.value.message.startswith(param.partition(".")[0])
        or "only one constraint" in error.value.message
    )


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_grammars_are_checked_before_the_engine(
    complete: Any, engine: FakeEngine, path: str, stream: bool
) -> None:
    for body, param in (
        ({"response_format": named({"type": "what"})}, "response_format"),
        ({"guided_regex": "(["}, "guided_regex"),
        ({"structured_outputs": {"grammar": "root ::= missing"}}, "structured_outputs"),
    ):
        assert complete(path, expect=400, stream=stream, **body)["error"]["param"] == param
    assert not engine.seen
    complete(path, stream=stream, response_format=named(SCHEMA))
    params = engine.seen[-1][1].structured_outputs
    assert params is not None
    assert json.loads(params.json) == {**SCHEMA, "additionalProperties": False}


def test_strict_schemas_are_closed_where_that_is_safe() -> None:
    inner = {"type": "object", "properties": {"b": {"type": "string"}}}
    nested = {
        "properties": {
            "a": {"$ref": "#/$defs/I"},
            "l": {"items": inner},
            "u": {"anyOf": [inner, {"type": "null"}]},
        },
        "$defs": {"I": inner},
    }
    shut = {**inner, "additionalProperties": False}
    assert closed(nested) == {
        "properties": {
            "a": {"$ref": "#/$defs/I"},
            "l": {"items": shut},
            "u": {"anyOf": [shut, {"type": "null"}]},
        },
        "$defs": {"I": shut},
        "additionalProperties": False,
    }
    for left in (
        {**inner, "additionalProperties": True},
        {**inner, "patternProperties": {"^x": {}}},
        {"properties": {"a": {"allOf": [inner, {"properties": {"c": {}}}]}}},
        {**inner, "$ref": "#/$defs/I"},
        {**inner, "anyOf": [{"required": ["b"]}]},
        True,
        {"enum": [{"properties": 1}]},
    ):
        assert closed(left) == left
