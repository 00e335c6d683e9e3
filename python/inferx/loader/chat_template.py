"""Rendering a model's chat template, which is a program from a stranger.

See ``sandbox`` for what it can and cannot do; only plain JSON values are passed in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.sandbox import SecurityError

from inferx.errors import InvalidRequestError
from inferx.loader.sandbox import MAX_VALUE, LoopBudget, sandbox

MAX_TEMPLATE_CHARS = 1 << 20
MAX_OUTPUT_CHARS = MAX_VALUE
MAX_DEPTH = 64


@lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    return sandbox().from_string(source)


def plain(value: Any, depth: int = 0) -> Any:
    """``value`` rebuilt from plain JSON types, so that a template never meets an object with methods of its
    own."""
    if depth > MAX_DEPTH:
        raise InvalidRequestError(f"messages: nested deeper than {MAX_DEPTH} levels", "messages")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    if callable(getattr(value, "model_dump", None)):
        return plain(value.model_dump(), depth + 1)
    raise InvalidRequestError(f"messages: expected JSON values, got {type(value).__name__}", "messages")


class ChatTemplate:
    """A compiled template.  Rendering is thread-safe."""

    def __init__(self, source: str, bos_token: str = "", eos_token: str = "") -> None:
        """bos_token, eos_token: what the template's variables of these names hold.

        InvalidRequestError when the template does not compile."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise InvalidRequestError(
                f"chat template: longer than {MAX_TEMPLATE_CHARS} characters", "chat_template"
            )
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _compile(source)
        except (jinja2.TemplateError, RecursionError, OverflowError, MemoryError) as error:
            raise InvalidRequestError(f"chat template: does not compile: {error}", "chat_template") from error
        self._takes_parts: bool | None = None

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """messages and variables: plain JSON values.  InvalidRequestError for whatever the template refuses
        or does wrong."""
        pieces: list[str] = []
        length = 0
        scope = {**self._tokens, **variables, "messages": messages, "range": LoopBudget().range}
        try:
            for piece in self._template.generate(scope):
                length += len(piece)
                if length > MAX_OUTPUT_CHARS:
                    raise SecurityError(f"the output is longer than {MAX_OUTPUT_CHARS} characters")
                pieces.append(piece)
        except Exception as error:  # a template can raise anything: type errors, zero division, recursion
            raise InvalidRequestError(
                f"chat template: {error or type(error).__name__}", "messages"
            ) from error
        return "".join(pieces)

    def takes_parts(self) -> bool:
        """Whether the template itself understands content given as a list of parts."""
        if self._takes_parts is None:
            probe = "inferx-probe"
            message = {"role": "user", "content": [{"type": "text", "text": probe}]}
            try:
                text = self.render([message], add_generation_prompt=False, tools=None)
            except InvalidRequestError:
                text = ""
            # A template that knows only strings prints the list itself, or fails.
            self._takes_parts = probe in text and "'type'" not in text and '"type"' not in text
        return self._takes_parts


def normalise_messages(messages: Any, takes_parts: bool) -> list[dict[str, Any]]:
    """Plain dicts with a role; null fields dropped; text parts joined by newlines for templates that want
    strings; tool call arguments, which the OpenAI API passes as JSON text, as objects."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidRequestError("messages: expected a non-empty list", "messages")
    result = []
    for index, message in enumerate(messages):
        fields = plain(message)
        if not isinstance(fields, dict) or not isinstance(fields.get("role"), str):
            raise InvalidRequestError(
                f"messages[{index}]: expected an object with a string 'role'", "messages"
            )
        fields = {key: value for key, value in fields.items() if value is not None}
        if "content" not in fields and not fields.get("tool_calls"):
            raise InvalidRequestError(f"messages[{index}]: expected 'content'", "messages")
        if isinstance(fields.get("content"), list):
            texts = _text_parts(fields["content"], index)
            if not takes_parts:
                fields["content"] = "\n".join(texts)
        for call in fields.get("tool_calls") or []:
            _parse_arguments(call)
        result.append(fields)
    return result


def append_to_content(message: dict[str, Any], text: str) -> None:
    """Put ``text`` behind the content of a normalised message, in place."""
    content = message.get("content", "")
    if not isinstance(content, list):
        message["content"] = content + text
    elif content and isinstance(content[-1], dict):
        content[-1]["text"] += text
    else:
        content.append({"type": "text", "text": text})


def _text_parts(parts: list[Any], index: int) -> list[str]:
    texts = []
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise InvalidRequestError(
                f"messages[{index}].content: only text parts are supported, got {kind!r}", "messages"
            )
        texts.append(text)
    return texts


def _parse_arguments(call: Any) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return  # the template prints the text as it came
    if isinstance(arguments, dict):
        function["arguments"] = arguments
