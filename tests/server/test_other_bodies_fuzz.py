"""Whatever JSON comes in, converting a Responses or a Messages body ends in a chat request or in an ApiError
that can be sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inferx.server.anthropic import convert as anthropic_convert
from inferx.server.anthropic.errors import error_body
from inferx.server.anthropic.protocol import MessagesRequest
from inferx.server.chat_extensions import renamed
from inferx.server.errors import ApiError
from inferx.server.protocol import ChatCompletionRequest, parse_json, parse_request
from inferx.server.responses_api import convert as responses_convert
from inferx.server.responses_api.items import input_items
from inferx.server.responses_api.protocol import ResponsesRequest

TEXT = (
    "type role content text id name input arguments call_id output summary message function_call "
    "user assistant function_call_output reasoning input_text output_text system tool_use "
    "tool_result thinking tool_use_id function tools parameters input_schema auto any tool none "
    "required allowed_tools mode format json_schema schema is_error image"
)
WORDS = TEXT.split()
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(WORDS)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(WORDS), inner, max_size=5)
    ),
    max_leaves=6,
)
item = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(WORDS),
        "role": st.sampled_from(["user", "assistant", "system", "developer", 5]),
        "content": values,
        "text": values,
        "id": st.sampled_from(["a", "b", "", None]),
        "call_id": st.sampled_from(["a", "b", ""]),
        "tool_use_id": st.sampled_from(["a", "b", ""]),
        "name": st.sampled_from(["f", "g", 5]),
        "arguments": values,
        "input": values,
        "output": values,
        "summary": values,
    },
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant"])}, optional={"content": st.one_of(values, st.lists(item))}
)


def bodies(model: type[Any], **known: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    others = {name: values for name in model.model_fields if name not in known}
    return st.fixed_dictionaries({}, optional={**known, **others})


def check(body: dict[str, Any], convert: Callable[[dict[str, Any]], dict[str, Any]], names: Any) -> None:
    error = None
    try:
        data = parse_json(msgspec.json.encode(body))  # as it would come in: no NaN, no surrogates
        parse_request(ChatCompletionRequest, convert(data))
    except ApiError as caught:
        error = renamed(caught, names)
    if error is not None:
        assert error.status == 400
        assert error.message
        assert len(msgspec.json.encode(error_body(error))) < 2000


def from_responses(data: dict[str, Any]) -> dict[str, Any]:
    request = parse_request(ResponsesRequest, data)
    request.check()
    items = input_items(request.input)
    assert input_items(items) == items
    responses_convert.check_calls(items, 0)
    return responses_convert.chat_body(request, items)


def from_messages(data: dict[str, Any]) -> dict[str, Any]:
    return anthropic_convert.chat_body(parse_request(MessagesRequest, data))


quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(bodies(ResponsesRequest, input=st.one_of(values, st.lists(item, max_size=5))))
def test_responses(body: dict[str, Any]) -> None:
    check(body, from_responses, responses_convert.PARAM_NAMES)


@quick
@given(bodies(MessagesRequest, messages=st.lists(message, min_size=1, max_size=5), max_tokens=st.just(5)))
def test_messages(body: dict[str, Any]) -> None:
    check(body, from_messages, anthropic_convert.PARAM_NAMES)


@quick
@given(st.lists(item, max_size=6))
def test_items_alone(items: list[Any]) -> None:
    check({"input": items}, from_responses, responses_convert.PARAM_NAMES)


@quick
@given(st.lists(message, min_size=1, max_size=4))
def test_messages_alone(messages: list[Any]) -> None:
    check({"messages": messages, "max_tokens": 5}, from_messages, anthropic_convert.PARAM_NAMES)
