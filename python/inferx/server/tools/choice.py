"""What a request says about tools: which there are, and whether they may or must be called."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from inferx.errors import InvalidRequestError
from inferx.server import limits_table as limits
from inferx.server.errors import ApiError, bad_request, shorten
from inferx.server.protocol import ChatCompletionRequest
from inferx.structured_outputs import MAX_SCHEMA_DEPTH, check_schema

Mode = Literal["none", "auto", "required", "named"]
_NAME = re.compile(r"[A-Za-z0-9_.:/-]+")


@dataclass(frozen=True)
class ToolPlan:
    """tools: what the template shows.  functions: their ``function`` objects by name.  places: where in
    the request these are.  function: the one to
    be called, in mode ``named``.  single: at most one call."""

    mode: Mode = "none"
    tools: list[dict[str, Any]] | None = None
    functions: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    function: str | None = None
    single: bool = False

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.functions)

    @property
    def strict(self) -> bool:
        """Whether a function asks for arguments that follow its schema to the letter."""
        return any(function.get("strict") is True for function in self.functions.values())


def tool_plan(body: ChatCompletionRequest) -> ToolPlan:
    """The request's tools, checked; ApiError (400) naming what is wrong."""
    for name in ("functions", "function_call"):
        if getattr(body, name) is not None:
            raise bad_request(f"{name} is not supported; use tools", name)
    functions = tool_functions(body.tools)
    mode, function, allowed = _choice(body.tool_choice, functions)
    if mode == "none":
        return ToolPlan()
    tools = body.tools or []
    if allowed is not None:
        tools = [tool for tool in tools if tool["function"]["name"] in allowed]
        functions = {name: value for name, value in functions.items() if name in allowed}
    places = {tool["function"]["name"]: f"tools[{i}].function" for i, tool in enumerate(body.tools or [])}
    return ToolPlan(mode, tools, functions, places, function, body.parallel_tool_calls is False)


def tool_functions(tools: list[dict[str, Any]] | None) -> dict[str, dict[str, Any]]:
    """The functions by name; ApiError for a tool that is none."""
    functions: dict[str, dict[str, Any]] = {}
    for i, tool in enumerate(tools or []):
        where = f"tools[{i}]"
        if tool.get("type", "function") != "function":
            raise bad_request(
                f"{where}.type must be 'function', got {shorten(tool['type'])}", f"{where}.type"
            )
        function = tool.get("function")
        if not isinstance(function, dict):
            raise bad_request(
                f"{where}.function must be an object, got {shorten(function)}", f"{where}.function"
            )
        name = _check_function(function, f"{where}.function")
        if name in functions:
            raise bad_request(
                f"{where}.function.name: there is another tool of the name {shorten(name)}",
                f"{where}.function.name",
            )
        functions[name] = function
    return functions


def _check_function(function: dict[str, Any], where: str) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise bad_request(
            f"{where}.name must have letters, digits, _ - . : or /, got {shorten(name)}", f"{where}.name"
        )
    limits.TOOL_NAME_CHARS.check(len(name), f"{where}.name")
    if not isinstance(function.get("description"), str | None):
        raise bad_request(
            f"{where}.description must be text, got {shorten(function['description'])}",
            f"{where}.description",
        )
    if not isinstance(function.get("strict"), bool | None):
        raise bad_request(
            f"{where}.strict must be true or false, got {shorten(function['strict'])}", f"{where}.strict"
        )
    _check_parameters(function.get("parameters"), f"{where}.parameters")
    return name


def _check_parameters(schema: Any, where: str) -> None:
    if schema is None:
        return
    if not isinstance(schema, dict):
        raise bad_request(f"{where} must be a JSON schema, got {shorten(schema)}", where)
    kind = schema.get("type", "object")
    if kind != "object":
        raise bad_request(f"{where}.type must be 'object', got {shorten(kind)}", f"{where}.type")
    if not isinstance(schema.get("properties", {}), dict):
        raise bad_request(
            f"{where}.properties must be an object, got {shorten(schema['properties'])}",
            f"{where}.properties",
        )
    try:
        check_schema("parameters", schema)
    except InvalidRequestError as error:
        message = str(error).partition(": ")[2] or str(error)
        raise bad_request(f"{where}: {message} (at most {MAX_SCHEMA_DEPTH} levels)", where) from None


def _choice(choice: Any, functions: dict[str, Any]) -> tuple[Mode, str | None, frozenset[str] | None]:
    """(mode, named function, names that may be called when not all)."""
    if choice is None:
        return ("auto" if functions else "none"), None, None
    if choice == "none":
        return "none", None, None
    if choice in ("auto", "required"):
        if not functions:
            raise bad_request(f"tool_choice {choice!r} needs tools", "tool_choice")
        return choice, None, None
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        return "named", _named(choice, functions, "tool_choice"), None
    if kind == "allowed_tools":
        return _allowed(choice.get("allowed_tools", choice), functions)
    raise _wrong_choice(choice)


def _wrong_choice(choice: Any) -> ApiError:
    return bad_request(
        "tool_choice must be 'none', 'auto', 'required' or "
        f"{{'type': 'function', 'function': {{'name': ...}}}}, got {shorten(choice)}",
        "tool_choice",
    )


def _named(choice: Any, functions: dict[str, Any], where: str) -> str:
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise bad_request(f"{where}.function must be an object with a name, got {shorten(function)}", where)
    if name not in functions:
        raise bad_request(f"{where}: there is no tool of the name {shorten(name)}", where)
    return name


def _allowed(value: Any, functions: dict[str, Any]) -> tuple[Mode, str | None, frozenset[str] | None]:
    where = "tool_choice.allowed_tools"
    mode = value.get("mode", "auto") if isinstance(value, dict) else None
    tools = value.get("tools") if isinstance(value, dict) else None
    if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
        raise bad_request(
            f"{where} must have mode 'auto' or 'required' and a list of tools, got {shorten(value)}", where
        )
    return mode, None, frozenset(_named(tool, functions, where) for tool in tools)
