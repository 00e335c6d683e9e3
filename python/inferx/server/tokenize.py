"""``/tokenize`` and ``/detokenize``, in vLLM's shape."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inferx.server.chat_core import encode_conversation
from inferx.server.context import ServerContext
from inferx.server.errors import bad_request
from inferx.server.prompts import check_token_ids
from inferx.server.protocol import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
    parse_request,
)
from inferx.server.responses import json_response


async def tokenize(context: ServerContext, request: Request) -> Response:
    """Token ids of a prompt, or of a conversation as the chat endpoint would render it."""
    data = await context.read_json(request)
    with context.admission.preparing_requests():
        ids, return_token_strs = await _tokenize(context, data)
    answer: dict[str, Any] = {
        "count": len(ids),
        "max_model_len": context.engine.max_model_len,
        "tokens": ids,
        "token_strs": None,
    }
    if return_token_strs:
        answer["token_strs"] = [context.engine.tokenizer.id_to_token(i) for i in ids]
    return json_response(answer)


async def _tokenize(context: ServerContext, data: dict[str, Any]) -> tuple[list[int], bool | None]:
    body: TokenizeRequest | TokenizeChatRequest
    if data.get("messages") is not None:
        body = parse_request(TokenizeChatRequest, data)
        context.check_model(body.model)
        ids = await encode_conversation(context, body, body.tools or None)
    else:
        body = parse_request(TokenizeRequest, data)
        context.check_model(body.model)
        ids = await context.text.encode(body.prompt, body.add_special_tokens is not False, "prompt")
    return ids, body.return_token_strs


async def detokenize(context: ServerContext, request: Request) -> Response:
    """The text of token ids, control tokens written out unless they are to be skipped."""
    body = parse_request(DetokenizeRequest, await context.read_json(request))
    context.check_model(body.model)
    check_token_ids(body.tokens, context.engine.vocab_size, "tokens")
    limit = context.text.max_chars
    if len(body.tokens) > limit:
        raise bad_request(f"tokens takes at most {limit} ids, got {len(body.tokens)}", "tokens")
    text = await context.text.decode(body.tokens, bool(body.skip_special_tokens))
    return json_response({"prompt": text})
