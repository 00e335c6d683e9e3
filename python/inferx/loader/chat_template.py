"""Rendering a model's chat template, which is a program from a stranger, safely.

jinja2's immutable sandbox keeps the template away from Python's internals; on top of that the output,
repeated strings and ``range`` are bounded, and only plain JSON values are passed in.  Filters and globals
are the ones that published templates were written against (transformers' ``apply_chat_template``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

from inferx.errors import InvalidRequestError

MAX_TEMPLATE_CHARS = 1 << 20
MAX_OUTPUT_CHARS = 1 << 24
MAX_LOOP_ITEMS = 1_000_000  # over all calls of range() in one rendering
MAX_DEPTH = 64
_WIDTH = re.compile(r"\d{5,}|\*")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses the operators by which a short template makes a huge value."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if not all(isinstance(side, (int, float)) and abs(side) < 1e4 for side in (left, right)):
                raise SecurityError("exponents this large are not allowed in chat templates")
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                repeats = isinstance(value, (str, list, tuple)) and isinstance(times, int)
                if repeats and len(value) * times > MAX_OUTPUT_CHARS:
                    raise SecurityError("repetitions this long are not allowed in chat templates")
        elif isinstance(left, str) and _WIDTH.search(left):
            raise SecurityError("field widths this large are not allowed in chat templates")
        return super().call_binop(context, operator, left, right)


class _GenerationBlocks(jinja2.ext.Extension):
    """``{% generation %}`` only marks assistant text for training: render what is inside."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """As transformers: no HTML escaping, characters as they are."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


@lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlocks]
    )
    environment.filters["tojson"] = _tojson
    environment.filters.pop("center", None)
    environment.globals.pop("lipsum", None)
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment.from_string(source)


class _LoopBudget:
    """``range`` whose calls share one budget, so that nested loops end too."""

    def __init__(self) -> None:
        self._left = MAX_LOOP_ITEMS

    def range(self, *bounds: int) -> range:
        items = range(*bounds)
        self._left -= len(items) + 1
        if self._left < 0:
            raise SecurityError(f"the chat template loops over more than {MAX_LOOP_ITEMS} numbers")
        return items


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
        scope = {**self._tokens, **variables, "messages": messages, "range": _LoopBudget().range}
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
        if isinstance(fields.get("content"), list) and not takes_parts:
            fields["content"] = _joined_text(fields["content"], index)
        for call in fields.get("tool_calls") or []:
            _parse_arguments(call)
        result.append(fields)
    return result


def _joined_text(parts: list[Any], index: int) -> str:
    texts = []
    for part in parts:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise InvalidRequestError(
                f"messages[{index}].content: only text parts are supported, got {kind!r}", "messages"
            )
        texts.append(text)
    return "\n".join(texts)


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
