"""What APIs built on the chat endpoint share: its fields beyond their own, and its errors in their words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from inferx.server.chat_core import ChatDelta
from inferx.server.errors import ApiError
from inferx.server.protocol import RequestModel


class ChatExtensions(RequestModel):
    """Base of bodies that become a chat request, which also checks these fields."""

    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    seed: Any = None
    repetition_penalty: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    min_tokens: Any = None
    ignore_eos: Any = None
    logit_bias: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    stop_token_ids: Any = None
    include_stop_str_in_output: Any = None
    skip_special_tokens: Any = None
    structured_outputs: Any = None
    chat_template_kwargs: Any = None
    priority: Any = None
    cache_salt: Any = None

    def extensions(self) -> dict[str, Any]:
        """Those that were given."""
        values = {name: getattr(self, name) for name in _NAMES}
        return {name: value for name, value in values.items() if value is not None}


_NAMES = tuple(name for name in ChatExtensions.model_fields if name not in RequestModel.model_fields)


class ReasoningTokens:
    """Counts the tokens of an answer up to the end of its reasoning; none if it does none."""

    def __init__(self) -> None:
        self.count = 0
        self._seen = 0
        self._ended = False

    def take(self, delta: ChatDelta) -> None:
        if self._ended:
            return
        if delta.content or delta.tool_calls:
            self._ended = True
            if not delta.reasoning:
                return  # the end of the block came before
        self._seen += len(delta.token_ids)
        if delta.reasoning or self.count:
            self.count = self._seen


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """A chat request's error under the names the caller used.

    names: patterns of the chat request's fields -> what the other API has in their place; the first that
    matches the beginning of ``param``, up to a dot or a bracket, is taken.
    """
    if error.param is None:
        return error
    for pattern, name in names.items():
        param, count = re.subn(rf"^(?:{pattern})(?=$|[.\[])", name, error.param)
        if count:
            break
    else:
        return error
    return ApiError(
        error.status,
        error.message.replace(error.param, param),
        type=error.type,
        param=param,
        code=error.code,
        close=error.close,
        retry_after=error.retry_after,
        headers=error.headers,
    )
