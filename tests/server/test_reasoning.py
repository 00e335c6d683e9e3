"""Reasoning told apart from answers, however the text is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferx.server.reasoning import (
    Start,
    ThinkParser,
    start_behind_prefill,
    start_behind_prompt,
)


def split(start: Start, pieces: list[str], hidden: bool = False) -> tuple[str, str]:
    parser = ThinkParser(start, hidden=hidden)
    parts = [parser.push(piece) for piece in pieces] + [parser.push("", final=True)]
    return "".join(r for r, _ in parts), "".join(a for _, a in parts)


@pytest.mark.parametrize(
    ("start", "text", "wanted"),
    [
        ("possible", "<think>\nhm\n</think>\n\nHi ", ("hm", "Hi ")),
        ("possible", "\n <think>a <b> c</think>x", ("a <b> c", "x")),
        ("possible", "<think>\n\n</think>\n\nHi", ("", "Hi")),
        ("possible", "<think>never ends\n", ("never ends", "")),
        ("possible", " plain <think>text</think>", ("", " plain <think>text</think>")),
        ("possible", "<thin", ("", "<thin")),
        ("possible", "", ("", "")),
        ("open", "\nhm</think>Hi", ("hm", "Hi")),
        ("open", "<think>again</think>", ("<think>again", "")),
        ("open", "cut </thi", ("cut </thi", "")),
        ("open", "a</think>b</think>c", ("a", "b</think>c")),
        ("closed", "<think>x</think>", ("", "<think>x</think>")),
    ],
)
def test_blocks(start: Start, text: str, wanted: tuple[str, str]) -> None:
    assert split(start, [text]) == wanted
    assert split(start, list(text)) == wanted


def test_special_marks_never_show() -> None:
    assert split("possible", list("<think>a</think>b</think><think>c"), hidden=True) == ("a", "bc")


SOUP = st.lists(
    st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "\n", " ", "a", "é", "<tool_call>"]),
    max_size=10,
).map("".join)


@given(
    text=SOUP,
    places=st.lists(st.integers(0, 60), max_size=6),
    start=st.sampled_from(["possible", "open", "closed"]),
    hidden=st.booleans(),
)
@settings(max_examples=800, deadline=None)
def test_any_text_cut_anywhere(text: str, places: list[int], start: Start, hidden: bool) -> None:
    whole = split(start, [text], hidden)
    bounds = sorted({min(p, len(text)) for p in places} | {0, len(text)})
    assert split(start, [text[a:b] for a, b in itertools.pairwise(bounds)], hidden) == whole
    assert split(start, list(text), hidden) == whole
    reasoning, answer = whole
    if not hidden:
        # Nothing is lost but the marks of the block and the white space at its edges.
        kept = "".join((reasoning + answer).split())
        everything = "".join(text.split())
        assert kept in (everything, everything.replace("<think>", "", 1).replace("</think>", "", 1)) or (
            kept == everything.replace("</think>", "", 1) and start == "open"
        )


def test_where_an_answer_begins() -> None:
    assert start_behind_prompt("user\n<think> </think>\nassistant\n") == "possible"
    assert start_behind_prompt("assistant\n<think>\n") == "open"
    assert start_behind_prompt("assistant\n<think>\n\n</think>\n\n") == "closed"
    assert start_behind_prefill("") == "possible"
    assert start_behind_prefill("Sure") == "closed"
    assert start_behind_prefill("<think>hm") == "open"
    assert start_behind_prefill("<think>hm</think>") == "closed"
