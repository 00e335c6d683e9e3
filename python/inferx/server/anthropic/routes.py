"""The paths under ``/v1/messages``."""

from __future__ import annotations

from inferx.server.anthropic import endpoints, schemas
from inferx.server.anthropic.protocol import Conversation, MessagesRequest
from inferx.server.routes import Route

MESSAGES_ROUTES = (
    Route(
        "POST",
        "/v1/messages",
        endpoints.create_message,
        "The next message of a conversation, in Anthropic's shape.",
        body=MessagesRequest,
        response=schemas.Message,
        events=schemas.MessageEvent,
        error=schemas.AnthropicErrorResponse,
        tag="anthropic",
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        endpoints.count_tokens,
        "How many tokens a conversation has, in Anthropic's shape.",
        body=Conversation,
        response=schemas.TokenCount,
        error=schemas.AnthropicErrorResponse,
        tag="anthropic",
    ),
)
