"""The paths under ``/v1/responses``."""

from __future__ import annotations

from inferx.server.responses_api import endpoints, schemas
from inferx.server.responses_api.protocol import ResponsesRequest
from inferx.server.routes import Route, query_parameter

RESPONSES_ROUTES = (
    Route(
        "POST",
        "/v1/responses",
        endpoints.create_response,
        "An answer to input items, kept for a while.",
        body=ResponsesRequest,
        response=schemas.ResponseObject,
        events=schemas.ResponseEvent,
    ),
    Route(
        "POST",
        "/v1/responses/input_tokens",
        endpoints.count_input_tokens,
        "How many tokens the prompt of such a request has.",
        body=ResponsesRequest,
        response=schemas.InputTokenCount,
    ),
    Route(
        "GET",
        "/v1/responses/{response_id}",
        endpoints.get_response,
        "A stored response.",
        response=schemas.ResponseObject,
        events=schemas.ResponseEvent,
        parameters=(
            query_parameter("stream", {"type": "boolean"}, "Its events, of a background response."),
            query_parameter(
                "starting_after", {"type": "integer", "minimum": 0}, "Only events after this number."
            ),
        ),
    ),
    Route(
        "DELETE",
        "/v1/responses/{response_id}",
        endpoints.delete_response,
        "Forget a stored response, ending it first.",
        response=schemas.DeletedResponse,
    ),
    Route(
        "POST",
        "/v1/responses/{response_id}/cancel",
        endpoints.cancel_response,
        "End a response that runs in the background.",
        response=schemas.ResponseObject,
    ),
    Route(
        "GET",
        "/v1/responses/{response_id}/input_items",
        endpoints.list_input_items,
        "What a stored response was made from.",
        response=schemas.InputItemList,
        parameters=(
            query_parameter("after", {"type": "string"}, "Only items behind the one with this id."),
            query_parameter(
                "limit",
                {"type": "integer", "minimum": 1, "maximum": endpoints.MAX_LISTED_ITEMS, "default": 20},
                "Items of a page.",
            ),
            query_parameter("order", {"enum": ["asc", "desc"], "default": "desc"}, "Oldest or newest first."),
        ),
    ),
)
