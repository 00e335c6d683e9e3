"""From a response's request to the chat request that answers it."""

from __future__ import annotations

from typing import Any

from inferx.server.errors import bad_request, shorten
from inferx.server.responses_api.items import Item
from inferx.server.responses_api.protocol import ResponsesRequest

# How the chat request's errors name what the caller wrote.  Places in the converted list of messages are
# none in the caller's, so only the field is named.
PARAM_NAMES = {
    r"messages.*": "input",
    r"max_completion_tokens": "max_output_tokens",
    r"response_format\.json_schema": "text.format",
    r"response_format": "text.format",
    r"reasoning_effort": "reasoning.effort",
    r"(tools\[\d+\])\.function": r"\1",
    r"tool_choice\.function": "tool_choice",
}


def chat_body(body: ResponsesRequest, items: list[Item]) -> dict[str, Any]:
    """The chat request's fields for a conversation of ``items``; ApiError for tools and formats that are
    malformed or not supported."""
    data: dict[str, Any] = {
        "model": body.model,
        "messages": messages(body.instructions, items),
        "max_completion_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls,
        "stop": body.stop,
        **body.extensions(),
    }
    tools, choice = tools_and_choice(body.tools or [], body.tool_choice)
    if tools:
        data["tools"] = tools
        data["tool_choice"] = choice
    if (response_format := _response_format(body)) is not None:
        data["response_format"] = response_format
    if body.with_logprobs:
        data["logprobs"] = True
        data["top_logprobs"] = body.top_logprobs
    if body.reasoning is not None and body.reasoning.effort is not None:
        data["reasoning_effort"] = body.reasoning.effort
        kwargs = body.chat_template_kwargs or {}
        if body.reasoning.effort == "none" and isinstance(kwargs, dict):
            # The name that templates of models with optional thinking look for.
            data["chat_template_kwargs"] = {"enable_thinking": False} | kwargs
    return {name: value for name, value in data.items() if value is not None}


def messages(instructions: str | None, items: list[Item]) -> list[dict[str, Any]]:
    """The conversation as chat messages.

    Reasoning, text and calls of one assistant's turn become one message, and instructions that stand before
    a system message become part of it: templates expect turns to alternate and one system message.
    """
    result: list[dict[str, Any]] = []
    if instructions:
        result.append({"role": "system", "content": instructions})
    for item in items:
        kind = item["type"]
        if kind == "message" and item["role"] != "assistant":
            _add_message(result, item)
        elif kind == "function_call_output":
            output = item["output"]
            content = output if isinstance(output, str) else _joined(output)
            result.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        else:
            _add_to_turn(result, item)
    for message in result:
        if "content" not in message and "tool_calls" not in message:
            message["content"] = ""  # a turn that was cut off while the model still reasoned
    return result


def _add_message(result: list[dict[str, Any]], item: Item) -> None:
    role = "system" if item["role"] == "developer" else item["role"]
    text = _joined(item["content"])
    if role == "system" and len(result) == 1 and result[0]["role"] == "system":
        result[0]["content"] += "\n\n" + text
        return
    result.append({"role": role, "content": text})


def _add_to_turn(result: list[dict[str, Any]], item: Item) -> None:
    """Add reasoning, text or a call to the assistant's turn, which begins with it or goes on."""
    kind = item["type"]
    turn = result[-1] if result and result[-1]["role"] == "assistant" else None
    # Two texts, or reasoning after text, are turns of their own.
    if (
        turn is None
        or (kind != "function_call" and "content" in turn)
        or (kind == "reasoning" and "tool_calls" in turn)
    ):
        turn = {"role": "assistant"}
        result.append(turn)
    if kind == "message":
        turn["content"] = _joined(item["content"])
    elif kind == "reasoning":
        text = _joined(item["content"] or item["summary"])
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text
    elif kind == "function_call":
        call = {"name": item["name"], "arguments": item["arguments"]}
        turn.setdefault("tool_calls", []).append(
            {"id": item["call_id"], "type": "function", "function": call}
        )


def _joined(parts: list[dict[str, Any]]) -> str:
    return "\n".join(part["text"] for part in parts)


def check_calls(items: list[Item], first: int) -> None:
    """ApiError unless every output from ``items[first]`` on answers a call before it."""
    calls: set[str] = set()
    for i, item in enumerate(items):
        if item["type"] == "function_call":
            calls.add(item["call_id"])
        elif item["type"] == "function_call_output" and i >= first and item["call_id"] not in calls:
            raise bad_request(
                f"input[{i - first}].call_id: no function call before it has the id "
                f"{shorten(item['call_id'])}",
                f"input[{i - first}].call_id",
            )


# ---- tools


def tools_and_choice(tools: list[Any], choice: Any) -> tuple[list[dict[str, Any]], Any]:
    """Tools and choice in the chat request's form; no tools, no choice."""
    functions = [_function(tool, f"tools[{i}]") for i, tool in enumerate(tools)]
    if choice is None or choice in ("none", "auto", "required"):
        if choice == "required" and not functions:
            raise bad_request("tool_choice 'required' needs tools", "tool_choice")
        return functions, choice or "auto"
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        name = choice.get("name")
        _check_known(functions, name, "tool_choice.name")
        return functions, {"type": "function", "function": {"name": name}}
    if kind == "allowed_tools":
        return _allowed(functions, choice)
    raise bad_request(
        "tool_choice must be 'none', 'auto', 'required', or an object of type 'function' or "
        f"'allowed_tools', got {shorten(choice if kind is None else kind)}",
        "tool_choice",
    )


def _function(tool: Any, where: str) -> dict[str, Any]:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind != "function":
        raise bad_request(
            f"{where}.type: only tools of type 'function' are supported, got {shorten(kind)}",
            f"{where}.type",
        )
    if not isinstance(tool.get("name"), str):
        raise bad_request(f"{where}.name: must be a string, got {shorten(tool.get('name'))}", f"{where}.name")
    function = {key: tool[key] for key in ("name", "description", "parameters", "strict") if key in tool}
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


def _allowed(functions: list[dict[str, Any]], choice: dict[str, Any]) -> tuple[list[dict[str, Any]], Any]:
    """The subset of tools that may be called; the model does not get to see the others."""
    mode, allowed = choice.get("mode"), choice.get("tools")
    if mode not in ("auto", "required"):
        raise bad_request(
            f"tool_choice.mode: must be 'auto' or 'required', got {shorten(mode)}", "tool_choice.mode"
        )
    if not isinstance(allowed, list) or not allowed:
        raise bad_request(
            f"tool_choice.tools: must be a list of tools, and not empty; got {shorten(allowed)}",
            "tool_choice.tools",
        )
    names = set()
    for i, tool in enumerate(allowed):
        name = tool.get("name") if isinstance(tool, dict) and tool.get("type") == "function" else None
        _check_known(functions, name, f"tool_choice.tools[{i}].name")
        names.add(name)
    return [tool for tool in functions if tool["function"]["name"] in names], mode


def _check_known(functions: list[dict[str, Any]], name: Any, where: str) -> None:
    if not isinstance(name, str) or all(name != tool["function"]["name"] for tool in functions):
        raise bad_request(f"{where}: must name one of the tools, got {shorten(name)}", where)


# ---- text format


def _response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    given = body.text.format if body.text is not None else None
    if given is None:
        return None
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind == "json_schema":
        schema = {key: given[key] for key in ("name", "description", "schema", "strict") if key in given}
        return {"type": "json_schema", "json_schema": schema}
    raise bad_request(
        f"text.format.type: must be 'text', 'json_object' or 'json_schema', got {shorten(kind)}",
        "text.format.type",
    )
