"""From a Messages request to the chat request that answers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from inferx.server import limits_table as limits
from inferx.server.anthropic.protocol import Conversation, InputMessage, MessagesRequest
from inferx.server.errors import ApiError, bad_request, shorten

# How the chat request's errors name what the caller wrote.  Places in the converted list of messages are
# none in the caller's, so only the field is named.
PARAM_NAMES = {
    r"messages.*": "messages",
    r"max_completion_tokens": "max_tokens",
    r"stop": "stop_sequences",
    r"response_format\.json_schema": "output_config.format",
    r"response_format": "output_config.format",
    r"(tools\[\d+\])\.function\.parameters": r"\1.input_schema",
    r"(tools\[\d+\])\.function": r"\1",
    r"tool_choice\.function": "tool_choice",
}
# Most of them because the models here read text only.
REFUSED_BLOCKS = {
    "image": "images are not supported: the model reads text",
    "document": "documents are not supported; send their text in a text block",
    "search_result": "search results are not supported; send their text in a text block",
    "container_upload": "there is no code execution",
}


def chat_body(body: Conversation) -> dict[str, Any]:
    """The chat request's fields; ApiError for what is malformed or not supported."""
    messages = chat_messages(body)
    data: dict[str, Any] = {"model": body.model, "messages": messages, **body.extensions()}
    if messages[-1]["role"] == "assistant":
        # The answer goes on where the last message ends.
        if messages[-1].get("tool_calls"):
            raise bad_request("messages: the last tool_use has no tool_result behind it", "messages")
        data["continue_final_message"] = True
        data["add_generation_prompt"] = False
    data |= _tools(body)
    if (schema := _output_schema(body)) is not None:
        data["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": schema, "strict": True},
        }
    if body.output_config is not None:
        data["reasoning_effort"] = body.output_config.effort
    if body.thinking is not None and body.thinking.type in ("enabled", "disabled"):
        # The name that templates of models with optional thinking look for.
        kwargs = body.chat_template_kwargs
        own = {"enable_thinking": body.thinking.type == "enabled"}
        data["chat_template_kwargs"] = own | kwargs if isinstance(kwargs, dict) else kwargs or own
    if isinstance(body, MessagesRequest):
        data["max_completion_tokens"] = body.max_tokens
        data["stop"] = body.stop_sequences
    return {name: value for name, value in data.items() if value is not None}


# ---- messages


def chat_messages(body: Conversation) -> list[dict[str, Any]]:
    """The conversation as chat messages: consecutive ones of a role as one, tool results on their own."""
    result: list[dict[str, Any]] = []
    if body.system is not None:
        system = _texts(body.system, "system")
        if system:
            result.append({"role": "system", "content": system})
    calls: set[str] = set()
    for i, message in enumerate(body.messages):
        where = f"messages[{i}].content"
        if message.role == "assistant":
            _add_assistant(result, message, where, calls)
        elif message.role == "user":
            _add_user(result, message, where, calls)
        else:
            _add(result, "system", _texts(message.content, where))
    if not result or result[-1]["role"] == "system":
        raise bad_request("messages: must have a message of the user or the assistant last", "messages")
    return result


def _add(result: list[dict[str, Any]], role: str, text: str) -> dict[str, Any]:
    """Add text to the turn of this role, which begins with it or goes on."""
    if result and result[-1]["role"] == role:
        before = result[-1].get("content")
        result[-1]["content"] = f"{before}\n{text}" if before else text
    else:
        result.append({"role": role, "content": text})
    return result[-1]


def _add_user(result: list[dict[str, Any]], message: InputMessage, where: str, calls: set[str]) -> None:
    def tool_result(block: dict[str, Any], place: str) -> None:
        call = _string(block, "tool_use_id", place)
        if call not in calls:
            raise bad_request(
                f"{place}.tool_use_id: no tool_use before it has the id {shorten(call)}",
                f"{place}.tool_use_id",
            )
        content = block.get("content")
        text = "" if content is None else _texts(content, f"{place}.content")
        result.append({"role": "tool", "tool_call_id": call, "content": text})

    def text(block: dict[str, Any], place: str) -> None:
        _add(result, "user", _string(block, "text", place))

    _each_block(message.content, where, {"text": text, "tool_result": tool_result})


def _add_assistant(result: list[dict[str, Any]], message: InputMessage, where: str, calls: set[str]) -> None:
    turn: dict[str, Any] = {"role": "assistant"}
    if result and result[-1]["role"] == "assistant":
        turn = result[-1]
    else:
        result.append(turn)

    def text(block: dict[str, Any], place: str) -> None:
        given = _string(block, "text", place)
        before = turn.get("content")
        turn["content"] = f"{before}\n{given}" if before else given

    def tool_use(block: dict[str, Any], place: str) -> None:
        call, name = _label(block, "id", place), _label(block, "name", place)
        arguments = block.get("input")
        if not isinstance(arguments, dict):
            raise bad_request(f"{place}.input: must be an object, got {shorten(arguments)}", f"{place}.input")
        calls.add(call)
        function = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
        turn.setdefault("tool_calls", []).append({"id": call, "type": "function", "function": function})

    def thinking(block: dict[str, Any], place: str) -> None:
        turn["reasoning_content"] = turn.get("reasoning_content", "") + _string(block, "thinking", place)

    def redacted(block: dict[str, Any], place: str) -> None:
        """Only Anthropic's own models can read it."""

    readers = {"text": text, "tool_use": tool_use, "thinking": thinking, "redacted_thinking": redacted}
    _each_block(message.content, where, readers)
    if "tool_calls" not in turn:
        turn.setdefault("content", "")


Reader = Callable[[dict[str, Any], str], None]


def _each_block(content: Any, where: str, readers: Mapping[str, Reader]) -> None:
    """Hand every block of a message to its type's reader; a string is one text block."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        given = "nothing" if content is None else shorten(content)
        raise bad_request(f"{where}: must be a string or a list of blocks, got {given}", where)
    for i, block in enumerate(content):
        place = f"{where}[{i}]"
        kind = block.get("type") if isinstance(block, dict) else None
        reader = readers.get(kind) if isinstance(kind, str) else None
        if reader is None:
            raise _bad_block(kind, place, tuple(readers))
        reader(block, place)


def _bad_block(kind: Any, place: str, known: tuple[str, ...]) -> ApiError:
    reason = REFUSED_BLOCKS.get(kind) if isinstance(kind, str) else None
    message = reason or f"must be one of {', '.join(known)}, got {shorten(kind)}"
    return bad_request(f"{place}.type: {message}", f"{place}.type")


def _texts(content: Any, where: str) -> str:
    """A string, or text blocks joined by line breaks."""
    texts: list[str] = []
    _each_block(content, where, {"text": lambda block, place: texts.append(_string(block, "text", place))})
    return "\n".join(texts)


def _string(block: dict[str, Any], name: str, place: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{place}.{name}: must be a string, got {shorten(value)}", f"{place}.{name}")
    return value


def _label(block: dict[str, Any], name: str, place: str) -> str:
    value = _string(block, name, place)
    if not value:
        raise bad_request(f"{place}.{name}: must not be empty", f"{place}.{name}")
    limits.LABEL_CHARS.check(len(value), f"{place}.{name}")
    return value


# ---- tools and formats


def _tools(body: Conversation) -> dict[str, Any]:
    """tools, tool_choice and parallel_tool_calls of the chat request."""
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(body.tools or [])]
    choice = body.tool_choice
    kind = choice.get("type") if isinstance(choice, dict) else None
    if choice is not None and kind not in ("auto", "any", "tool", "none"):
        raise bad_request(
            "tool_choice: must be an object of type 'auto', 'any', 'tool' or 'none', got "
            f"{shorten(choice if kind is None else kind)}",
            "tool_choice",
        )
    if not tools:
        if kind in ("any", "tool"):
            raise bad_request(f"tool_choice of type {kind!r} needs tools", "tool_choice")
        return {}
    data: dict[str, Any] = {"tools": tools, "tool_choice": _choice(tools, choice, kind)}
    if isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is not None:
        disabled = choice["disable_parallel_tool_use"]
        if not isinstance(disabled, bool):
            where = "tool_choice.disable_parallel_tool_use"
            raise bad_request(f"{where}: must be true or false, got {shorten(disabled)}", where)
        data["parallel_tool_calls"] = not disabled
    return data


def _choice(tools: list[dict[str, Any]], choice: Any, kind: str | None) -> Any:
    if kind != "tool":
        return {None: "auto", "auto": "auto", "any": "required", "none": "none"}[kind]
    name = choice.get("name")
    if not isinstance(name, str) or all(name != tool["function"]["name"] for tool in tools):
        raise bad_request(
            f"tool_choice.name: must name one of the tools, got {shorten(name)}", "tool_choice.name"
        )
    return {"type": "function", "function": {"name": name}}


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise bad_request(f"{where}: must be an object, got {shorten(tool)}", where)
    if tool.get("type") not in (None, "custom"):
        raise bad_request(
            f"{where}.type: only tools with an input_schema ('custom') are supported, got "
            f"{shorten(tool['type'])}",
            f"{where}.type",
        )
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        raise bad_request(
            f"{where}.input_schema: must be an object, got {shorten(schema)}", f"{where}.input_schema"
        )
    function = {"name": _label(tool, "name", where), "parameters": schema}
    for name in ("description", "strict"):
        if tool.get(name) is not None:
            function[name] = tool[name]
    return {"type": "function", "function": function}


def _output_schema(body: Conversation) -> dict[str, Any] | None:
    given = None if body.output_config is None else body.output_config.format
    if given is None:
        return None
    schema = given.get("schema")
    if given.get("type") != "json_schema" or not isinstance(schema, dict):
        raise bad_request(
            "output_config.format: must have type 'json_schema' and a schema that is an object, got "
            f"{shorten(given.get('type'))} and {shorten(schema)}",
            "output_config.format",
        )
    return schema
