"""Parsers of tool calls: every format, cut anywhere, well-formed or not."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inferx.server.tools.events import CallArguments, CallEnd, CallStart, Content, Event, merged
from inferx.server.tools.forced import NamedParser, RequiredParser
from inferx.server.tools.json_stream import JsonValue
from inferx.server.tools.parser import ToolParser
from inferx.server.tools.registry import FORMATS, MARKS, detect_format, make_parser

NAMES = frozenset(("get_weather", "f", "a.b-c_1"))
PARSERS = (*FORMATS, "required", "named")


def parser(kind: str, hidden: bool = False) -> ToolParser:
    if kind == "required":
        return RequiredParser()
    if kind == "named":
        return NamedParser("f")
    return make_parser(kind, NAMES, frozenset(MARKS[kind]) if hidden else frozenset())


def parse(kind: str, pieces: list[str], hidden: bool = False) -> list[Event]:
    running = parser(kind, hidden)
    events = [event for piece in pieces for event in running.push(piece)]
    return merged(events + running.finish())


def content(events: list[Event]) -> str:
    return "".join(e.text for e in events if isinstance(e, Content))


def calls(events: list[Event]) -> list[tuple[str, str, bool]]:
    """(name, arguments, complete) of each call."""
    result: list[tuple[str, str, bool]] = []
    for event in events:
        if isinstance(event, CallStart):
            result.append((event.name, "", False))
        elif isinstance(event, CallArguments):
            name, arguments, _ = result[-1]
            result[-1] = (name, arguments + event.text, False)
        elif isinstance(event, CallEnd):
            result[-1] = (*result[-1][:2], True)
    return result


def cut(text: str, places: list[int]) -> list[str]:
    bounds = sorted({min(p, len(text)) for p in places} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(bounds)]


# ---- well-formed answers

WEATHER = '{"city": "Paris", "unit": "c"}'
GOOD = [
    ("hermes", f'<tool_call>\n{{"name": "f", "arguments": {WEATHER}}}\n</tool_call>', "", [("f", WEATHER)]),
    (
        "hermes",
        'Let me see.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n'
        '<tool_call>{"arguments": {"x": [1, {"}": "{"}]}, "name": "g"}</tool_call>\n',
        "Let me see.",
        [("f", "{}"), ("g", '{"x": [1, {"}": "{"}]}')],
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}', "", [("f", '{"a": 1}')]),
    (
        "hermes",
        '<tool_call>{"name":"f","arguments":{}}{"name":"g","arguments":{}}</tool_call>',
        "",
        [("f", "{}"), ("g", "{}")],
    ),
    (
        "hermes",
        '<tool_call>[{"name":"f","arguments":{}}, {"name":"g","arguments":{"a":"</tool_call>"}}]</tool_call>',
        "",
        [("f", "{}"), ("g", '{"a":"</tool_call>"}')],
    ),
    (
        "hermes",
        '<tool_call>{"type":"function","function":{"name":"f","arguments":{"k":"\\u00e9\\"\\\\"}}}</tool_call>.',
        ".",
        [("f", '{"k":"\\u00e9\\"\\\\"}')],
    ),
    ("hermes", 'a <tool_call>{"name":"f"}</tool_call> b', "a b", [("f", "{}")]),
    ("llama3", f'{{"name": "f", "parameters": {WEATHER}}}', "", [("f", WEATHER)]),
    ("llama3", f'<|python_tag|>{{"name": "g", "parameters": {WEATHER}}}', "", [("g", WEATHER)]),
    (
        "llama3",
        '\n{"type": "function", "name": "f", "parameters": {"a": ";"}}; '
        '{"name": "a.b-c_1", "parameters": {}}',
        "",
        [("f", '{"a": ";"}'), ("a.b-c_1", "{}")],
    ),
    ("llama3", 'Sure. <|python_tag|>{"name": "f", "parameters": {}}', "Sure.", [("f", "{}")]),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": [1, 2]}}, {"name": "g", "arguments": {}}]',
        "",
        [("f", '{"a": [1, 2]}'), ("g", "{}")],
    ),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcdefghi"}]', "", [("f", "{}")]),
    (
        "mistral",
        'Hm.[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]a.b-c_1[CALL_ID]x1[ARGS]{"b": "[ARGS]"}',
        "Hm.",
        [("f", '{"a": 1}'), ("a.b-c_1", '{"b": "[ARGS]"}')],
    ),
    ("mistral", '[TOOL_CALLS]f{"a": 1}', "", [("f", '{"a": 1}')]),
    (
        "required",
        ' [{"name": "f", "parameters": {"a": "]"}}, {"name":"g","parameters":{}}]',
        "",
        [("f", '{"a": "]"}'), ("g", "{}")],
    ),
    ("named", '\n{"a": {"b": "}"}}\n ', "", [("f", '{"a": {"b": "}"}}')]),
]


@pytest.mark.parametrize(("kind", "text", "wanted_content", "wanted_calls"), GOOD)
@pytest.mark.parametrize("hidden", [False, True])
def test_calls_of_every_format(
    kind: str, text: str, wanted_content: str, wanted_calls: list[Any], hidden: bool
) -> None:
    events = parse(kind, [text], hidden)
    assert content(events) == wanted_content
    assert calls(events) == [(name, arguments, True) for name, arguments in wanted_calls]
    assert parse(kind, list(text), hidden) == events


# ---- what is no call is content

BAD = [
    ("hermes", "plain"),
    ("hermes", "  <tool_call> and </tool_call>\n"),
    ("hermes", "<tool_call>{'name': 'f'}</tool_call>"),
    ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": 5}</tool_call>'),
    ("hermes", '<tool_call>{"name": "f", "arguments": "no"}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_w'),
    ("hermes", "<tool_call>[]</tool_call>"),
    ("hermes", "<tool_ca"),
    ("llama3", '{"answer": {"name": "f"}}'),
    ("llama3", '{"name": "unknown", "parameters": {}}'),
    ("llama3", 'See {"name": "f", "parameters": {}}'),
    ("llama3", '<|python_tag|>print("hi")'),
    ("mistral", "[TOOL_CALLS] nothing, really"),
    ("mistral", "[TOOL_CALLS]f[ARGS]5"),
    ("mistral", "[TOOL_CALLS] [5]"),
    ("mistral", "[TOOL_CALLS]" + "x" * 600 + "{}"),
    ("required", "no"),
]


@pytest.mark.parametrize(("kind", "text"), BAD)
def test_what_is_no_call_is_content(kind: str, text: str) -> None:
    for pieces in ([text], list(text)):
        assert parse(kind, pieces) == [Content(text)]
    if kind in MARKS:
        shown = text
        for mark in MARKS[kind]:
            shown = shown.replace(mark, "")
        assert parse(kind, list(text), hidden=True) == [Content(shown)]


def test_malformed_arguments_end_the_call_and_the_rest_is_content() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": Paris}}</tool_call>'
    for pieces in ([text], list(text)):
        events = parse("hermes", pieces)
        assert calls(events) == [("f", '{"a": ', False)]
        assert content(events) == "Paris}}</tool_call>"


@pytest.mark.parametrize(("kind", "text", "_content", "wanted"), GOOD)
def test_cut_anywhere_by_the_token_limit(kind: str, text: str, _content: str, wanted: list[Any]) -> None:
    for end in range(len(text)):
        events = parse(kind, [text[:end]])
        got = calls(events)
        assert got[:-1] == [(*call, True) for call in wanted[: max(0, len(got) - 1)]]
        if got:
            name, arguments, complete = got[-1]
            assert name == wanted[len(got) - 1][0]
            assert wanted[len(got) - 1][1].startswith(arguments)
            assert complete == (arguments == wanted[len(got) - 1][1])


# ---- any text, cut anywhere

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=6), JSON, max_size=3)
PLACES = st.lists(st.integers(0, 400), max_size=12)
FRAGMENTS = st.sampled_from(
    [
        *(mark for marks in MARKS.values() for mark in marks),
        '{"name": "f", "arguments": ',
        '{"name":"get_weather","parameters":',
        '{"arguments": {"a": 1}, "name": "f"}',
        *(
            "{",
            "}",
            "[",
            "]",
            '"',
            "\\",
            ",",
            ":",
            ";",
            " ",
            "\n",
            "null",
            "-1.5e3",
            "1.",
            "tru",
            "f",
            "é",
            "😀",
        ),
        *("[TOOL_CA", "LLS]", "<tool", "_call>", "</tool_call", '\\"', "\\u12", "\\ud800", "{}", "}}"),
        '{"type": "function", "function": ',
    ]
)
SOUP = st.lists(FRAGMENTS | st.text(max_size=4), max_size=14).map("".join)


def written(
    kind: str, wanted: list[tuple[str, Any]], indent: int | None, ascii_only: bool
) -> tuple[str, Any]:
    """The calls in a format's own notation, and what they are to be parsed as."""
    texts = [(n, json.dumps(a, indent=indent, ensure_ascii=ascii_only)) for n, a in wanted]
    key = "parameters" if kind in ("llama3", "required") else "arguments"
    objects = [f'{{"name": {json.dumps(n)}, "{key}": {a}}}' for n, a in texts]
    if kind == "hermes":
        return "\n".join(f"<tool_call>\n{o}\n</tool_call>" for o in objects), texts
    if kind == "llama3":
        return "<|python_tag|>" + "; ".join(objects), texts
    if kind == "mistral":
        return "".join(f"[TOOL_CALLS]{n}[ARGS]{a}" for n, a in texts), texts
    return "[" + ", ".join(objects) + "]", texts


@given(
    kind=st.sampled_from(("hermes", "llama3", "mistral", "required")),
    wanted=st.lists(st.tuples(st.sampled_from(sorted(NAMES)), ARGUMENTS), min_size=1, max_size=3),
    indent=st.none() | st.just(2),
    ascii_only=st.booleans(),
    places=PLACES,
)
@settings(max_examples=300, deadline=None)
def test_arguments_are_the_exact_json(
    kind: str, wanted: list[Any], indent: int | None, ascii_only: bool, places: list[int]
) -> None:
    text, texts = written(kind, wanted, indent, ascii_only)
    events = parse(kind, cut(text, places))
    assert calls(events) == [(name, arguments, True) for name, arguments in texts]
    assert content(events) == ""
    assert [json.loads(a) for _, a, _ in calls(events)] == [a for _, a in wanted]


@given(kind=st.sampled_from(PARSERS), text=SOUP, places=PLACES, hidden=st.booleans())
@example("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}, "x": 01}', [3, 30], False)
@example("mistral", "[TOOL_CALLS][TOOL_CALLS]", [], True)
@example("required", "[", [], False)
@example("mistral", '[TOOL_CALLS][TOOL_CALLS]f{"a": 1}', [13, 15], True)
@settings(max_examples=1500, deadline=None)
def test_any_text_cut_anywhere(kind: str, text: str, places: list[int], hidden: bool) -> None:
    whole = parse(kind, [text], hidden)
    assert parse(kind, cut(text, places), hidden) == whole
    assert parse(kind, list(text), hidden) == whole
    if not calls(whole):
        shown = text
        for mark in MARKS.get(kind, ()) if hidden else ():
            shown = shown.replace(mark, "")
        if kind == "named":
            assert not shown.strip(" \t\n\r")
        elif hidden:
            # A mark that appears only once others are gone is not one.
            assert set(content(whole)) <= set(text)
        elif kind == "required" and shown.lstrip(" \t\n\r").startswith("["):
            # A list of calls that was cut before the first one's arguments is left out.
            assert content(whole) in shown
        else:
            assert content(whole) == shown
    for name, arguments, complete in calls(whole):
        assert name
        name.encode()
        if complete:
            assert isinstance(json.loads(arguments), dict) or kind == "named"
    if hidden and kind in MARKS:
        assert not any(mark in e.text for e in whole if isinstance(e, Content) for mark in MARKS[kind])


@given(text=SOUP, kind=st.sampled_from(("hermes", "llama3", "mistral")))
@settings(max_examples=500, deadline=None)
def test_nothing_is_lost(text: str, kind: str) -> None:
    """Every character is in the content, in a call's arguments or name, or is a call's markup."""
    events = parse(kind, [text])
    kept = "".join(
        e.text if isinstance(e, Content | CallArguments) else e.name if isinstance(e, CallStart) else ""
        for e in events
    )
    for character in "é😀;-":
        if "arguments" not in text and "name" not in text:
            assert kept.count(character) == text.count(character)


# ---- values


@given(value=JSON | st.text(alphabet='{}[]",:\\ ntfu0123456789.eE+-\x00\n', max_size=12), places=PLACES)
@settings(max_examples=1500, deadline=None)
def test_json_values_end_where_they_end(value: Any, places: list[int]) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    stripped = text.lstrip(" \t\n\r")
    text = stripped or "0"
    reader = JsonValue()
    consumed = 0
    for piece in cut(text, places):
        count = reader.feed(piece)
        consumed += count
        if count < len(piece):
            break
    try:
        _, end = STRICT.raw_decode(text)
        valid = True
    except (ValueError, RecursionError):
        valid = False
    if valid and not reader.failed:
        assert consumed == end or not reader.done  # a number, which nothing has ended
        if not reader.done:
            assert text[0] in "-0123456789"
            assert consumed == len(text)
    elif valid:
        # json takes "1.x" for 1; RFC 8259 knows no value that goes on like this.
        assert text[0] in "-0123456789"
    else:
        assert not reader.done


def _no_constants(name: str) -> Any:
    raise ValueError(name)


STRICT = json.JSONDecoder(parse_constant=_no_constants)


def test_deep_nesting_is_refused_without_recursion() -> None:
    reader = JsonValue()
    assert reader.feed("[" * 100_000) == 128
    assert reader.failed


def test_formats_are_recognised_by_their_templates() -> None:
    assert detect_format("{% if tools %}<tool_call>{% endif %}") == "hermes"
    assert detect_format("{{ '[TOOL_CALLS]' }}") == "mistral"
    assert detect_format("{{ '<|python_tag|>' }}") == "llama3"
    assert detect_format("{{ messages }}") is None
