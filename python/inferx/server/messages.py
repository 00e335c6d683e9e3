"""Chat messages as the template wants them: plain dicts, content a string."""

from __future__ import annotations

import inspect
import json
from typing import Any

from inferx.loader.tokenizer import Tokenizer
from inferx.server import limits_table as limits
from inferx.server.errors import ApiError, bad_request, shorten
from inferx.server.protocol import Message, TemplateFields

# The parameters of what renders, and what it gives every template.
RESERVED_KWARGS = frozenset((*inspect.signature(Tokenizer.encode_chat).parameters, "range"))


def conversation(messages: list[Message]) -> list[dict[str, Any]]:
    """Plain messages for the chat template; ApiError naming the part that is not supported."""
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain(message: Message, where: str) -> dict[str, Any]:
    # OpenAI's newer name for the same thing; most templates know only the older one.
    role = "system" if message.role == "developer" else message.role
    content = _text(message.content, f"{where}.content")
    if content is None:
        content = message.refusal
    reasoning = message.reasoning_content or message.reasoning
    if content is None and not message.tool_calls and not (reasoning and role == "assistant"):
        raise bad_request(f"{where}.content: required for role {role!r}", f"{where}.content")
    plain: dict[str, Any] = {"role": role, "content": "" if content is None else content}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if reasoning:
        plain["reasoning_content"] = reasoning
    if message.tool_calls:
        plain["tool_calls"] = _tool_calls(message.tool_calls, role, f"{where}.tool_calls")
    return plain


def _text(content: Any, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{where}: must be a string or a list of parts, got {shorten(content)}", where)
    limits.CONTENT_PARTS.check(len(content), where)
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "input_text", "output_text", "refusal"):
            raise bad_request(
                f"{where}[{i}]: only content parts of type 'text' are supported, got {shorten(kind)}",
                f"{where}[{i}].type",
            )
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise bad_request(
                f"{where}[{i}].text: must be a string, got {shorten(text)}", f"{where}[{i}].text"
            )
        texts.append(text)
    return "\n".join(texts)


def _tool_calls(calls: list[dict[str, Any]], role: str, where: str) -> list[dict[str, Any]]:
    if role != "assistant":
        raise bad_request(f"{where}: only messages of role 'assistant' can have calls, got {role!r}", where)
    limits.TOOL_CALLS.check(len(calls), where)
    return [_tool_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_request(f"{where}.function: must be an object with a name", f"{where}.function")
    arguments = function.get("arguments")
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    if not isinstance(arguments, dict | str):
        where = f"{where}.function.arguments"
        raise bad_request(f"{where}: must be a JSON object, got {shorten(arguments)}", where)
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _parsed(arguments: str) -> dict[str, Any] | str:
    """OpenAI carries a JSON text; templates print the object.  A model's text that is none (a call cut short)
    stays as it is, so that the conversation can go on."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def check_continuation(body: TemplateFields) -> None:
    """ApiError unless the final message is one that can be continued."""
    if body.add_generation_prompt:
        raise bad_request(
            "continue_final_message needs add_generation_prompt=false", "continue_final_message"
        )
    last = body.messages[-1]
    if last.role != "assistant" or last.content is None or last.tool_calls:
        raise bad_request(
            "continue_final_message needs a last message of role 'assistant' with content and without calls, "
            f"got one of role {shorten(last.role)}",
            "continue_final_message",
        )


def template_kwargs(request: TemplateFields) -> dict[str, Any]:
    """The caller's extra template variables, scalars only, none that rendering sets itself."""
    kwargs = request.chat_template_kwargs or {}
    if len(kwargs) > limits.TEMPLATE_KWARGS.most:
        raise _kwargs_error(f"takes at most {limits.TEMPLATE_KWARGS.most} entries, got {len(kwargs)}")
    for name, value in kwargs.items():
        if len(name) > limits.TEMPLATE_KWARG_NAME_CHARS.most:
            most = limits.TEMPLATE_KWARG_NAME_CHARS.most
            raise _kwargs_error(f"takes names of at most {most} characters, got {len(name)}")
        if not name.isidentifier() or name.startswith("_") or name in RESERVED_KWARGS:
            raise _kwargs_error(f"cannot set {shorten(name)}")
        scalar = value is None or isinstance(value, (bool, int, float, str))
        if not scalar or len(str(value)) > limits.TEMPLATE_KWARG_CHARS.most:
            raise _kwargs_error(f"values must be short scalars, got {shorten(value)} for {name}")
    return kwargs


def _kwargs_error(message: str) -> ApiError:
    return bad_request(f"chat_template_kwargs {message}", "chat_template_kwargs")
