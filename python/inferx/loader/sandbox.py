"""The jinja2 environment that chat templates run in.

jinja2's immutable sandbox keeps a template away from Python's internals.  On top of that, everything by
which a few characters of template could make a huge value or an endless loop is bounded: operators, string
methods, filters, captured blocks and ``range``.  Filters and globals are those that published templates
were written against (transformers' ``apply_chat_template``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.filters
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.visitor import NodeTransformer

MAX_VALUE = 1 << 24  # characters of a string, items of a list
MAX_LOOP_ITEMS = 1_000_000  # over all calls of range() in one rendering
MAX_WIDTH = 10_000
_MAX_POWER = 10_000
_PADDING = ("ljust", "rjust", "center", "zfill", "expandtabs")
# A width of five digits, or one taken from an argument.
_WIDE_PERCENT = re.compile(r"%[^a-zA-Z%]*(\d{5}|\*)")
_WIDE_BRACES = re.compile(r"\{[^{}]*:[^{}]*(\d{5}|\{)")


def _bounded(size: int) -> None:
    if size > MAX_VALUE:
        raise SecurityError(f"a value of more than {MAX_VALUE} characters or items")


def _narrow(*widths: Any) -> None:
    if any(isinstance(width, int) and width > MAX_WIDTH for width in widths):
        raise SecurityError(f"a field of more than {MAX_WIDTH} characters")


def _concat(parts: Iterable[str]) -> str:
    pieces = list(parts)
    _bounded(sum(map(len, pieces)))
    return "".join(pieces)


def _replaced(text: str, old: str, new: str, count: int = -1) -> str:
    _bounded(len(text) + text.count(old) * len(new))
    return text.replace(old, new, count)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["+", "*", "**", "%"])
    concat = staticmethod(_concat)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            if not all(isinstance(side, (int, float)) and abs(side) <= _MAX_POWER for side in (left, right)):
                raise SecurityError("a power of large numbers")
        elif operator == "*":
            for value, times in ((left, right), (right, left)):
                if isinstance(value, (str, list, tuple)) and isinstance(times, int):
                    _bounded(len(value) * times)
            if all(isinstance(side, int) and abs(side) > 1 << 256 for side in (left, right)):
                raise SecurityError("a product of very large numbers")
        elif operator == "+":
            if isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple)):
                _bounded(len(left) + len(right))
        elif isinstance(left, str) and _WIDE_PERCENT.search(left):
            raise SecurityError("a wide field in a format string")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        # jinja2 names this function in generated code; it stands between templates and every call they make.
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str):
            if name in _PADDING:
                _narrow(*args, *kwargs.values())
            elif name == "replace" and len(args) >= 2 and all(isinstance(arg, str) for arg in args[:2]):
                return _replaced(owner, *args)
            elif name == "join" and len(args) == 1:
                args = (list(args[0]),)
                _bounded(len(owner) * len(args[0]) + sum(len(item) for item in args[0]))
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Any:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_BRACES.search(value.__self__):
            raise SecurityError("a wide field in a format string")
        return wrapped

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> Any:
        return super()._generate(_BoundedConcat().visit(source), *args, **kwargs)


class _BoundedConcat(NodeTransformer):
    """``a ~ b`` becomes a filter, since jinja2 offers no hook for it."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        joined = nodes.Filter(nodes.List(node.nodes), "_concat", [], [], None, None)
        return joined.set_lineno(node.lineno)


class _GenerationBlocks(jinja2.ext.Extension):
    """``{% generation %}`` only marks assistant text for training: render what is inside."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class LoopBudget:
    """``range`` whose calls share one budget, so that nested loops end too."""

    def __init__(self) -> None:
        self._left = MAX_LOOP_ITEMS

    def range(self, *bounds: int) -> range:
        items = range(*bounds)
        self._left -= len(items) + 1
        if self._left < 0:
            raise SecurityError(f"loops over more than {MAX_LOOP_ITEMS} numbers")
        return items


# ---- filters and globals


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """As transformers: no HTML escaping, characters as they are."""
    _narrow(indent)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _replace_filter(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    return _replaced(str(text), str(old), str(new), -1 if count is None else count)


@jinja2.pass_eval_context
def _join_filter(context: Any, value: Any, d: str = "", attribute: Any = None) -> str:
    items = list(value)
    if attribute is None:
        _bounded(len(str(d)) * len(items) + sum(len(str(item)) for item in items))
    else:
        _bounded(len(str(d)) * len(items))
    return jinja2.filters.do_join(context, items, d, attribute)


def _indent_filter(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    _narrow(width)
    _bounded(len(text) + text.count("\n") * (width if isinstance(width, int) else len(width)))
    return jinja2.filters.do_indent(text, width, first, blank)


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def _strftime_now(layout: str) -> str:
    if len(layout) > 256 or re.search(r"\d{3}", layout):
        raise SecurityError("a date format this long")
    return datetime.now().strftime(layout)


def sandbox() -> jinja2.Environment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlocks]
    )
    environment.filters.update(
        {
            "tojson": _tojson,
            "replace": _replace_filter,
            "join": _join_filter,
            "indent": _indent_filter,
            "_concat": lambda items: _concat(map(str, items)),
        }
    )
    # Padding to any width, formats with any width, and random text: no template needs them.
    for name in ("center", "format", "wordwrap", "xmlattr"):
        environment.filters.pop(name, None)
    environment.globals.pop("lipsum", None)
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment
