"""Stop strings against a search of the whole text, whatever the pieces it comes in."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferx.engine.stop import StopMatcher


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The first end of the text that contains a stop string; of those that end there, the longest."""
    for end in range(1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            stop = max(ending, key=len)
            return text[:end] if include else text[: end - len(stop)], stop
    return text, None


def longest_open_end(text: str, stops: list[str]) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of a stop string."""
    return max(n for s in stops for n in range(len(s)) if text.endswith(s[:n]))


def split(text: str, cuts: list[int]) -> list[str]:
    marks = [0, *sorted(c % (len(text) + 1) for c in cuts), len(text)]
    return [text[a:b] for a, b in zip(marks, marks[1:], strict=False)]  # noqa: RUF007


alphabet = st.text(alphabet="ab歪", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab歪", min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=500, deadline=None)
@given(alphabet, stop_lists, st.booleans(), st.lists(st.integers(0, 100), max_size=8))
def test_any_text_in_any_pieces(text: str, stops: list[str], include: bool, cuts: list[int]) -> None:
    matcher = StopMatcher(stops, include)
    expected, stop = reference(text, stops, include)
    given_text = out = ""
    for piece in split(text, cuts):
        out += matcher.push(piece)
        given_text += piece
        assert expected.startswith(out)
        if matcher.matched is None:
            # Exactly what may still become a stop string is held back, nothing more.
            held = 0 if include else longest_open_end(given_text, stops)
            assert out == given_text[: len(given_text) - held]
    assert matcher.matched == stop
    assert out + matcher.flush() == expected


@settings(max_examples=300, deadline=None)
@given(alphabet, alphabet, stop_lists, st.booleans())
def test_nothing_is_looked_for_before_min_tokens(
    before: str, after: str, stops: list[str], include: bool
) -> None:
    """Matches completed in the first part do not count; ones that only begin there do."""
    matcher = StopMatcher(stops, include)
    out = matcher.push(before, search=False)
    assert matcher.matched is None
    held = 0 if include else longest_open_end(before, stops)
    assert out == before[: len(before) - held]
    out += matcher.push(after)
    text = before + after
    expected, stop = text, None
    for end in range(len(before) + 1, len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            stop = max(ending, key=len)
            expected = text[:end] if include else text[: end - len(stop)]
            break
    assert matcher.matched == stop
    assert out + matcher.flush() == expected


def test_first_complete_wins_then_longest() -> None:
    for stops, text, cut, which in [
        (["abcd", "bc"], "xabcd", "xa", "bc"),  # complete first, though it begins later
        (["bc", "abc"], "xabcd", "x", "abc"),  # complete together: the longer
        (["ab", "abc"], "xabcd", "x", "ab"),
        (["END", "\n\n"], "one\n\nEND", "one", "\n\n"),
        (["\n\n"], "a.\n\n\nb", "a.", "\n\n"),
        (["aab"], "aaaab", "aa", "aab"),
    ]:
        matcher = StopMatcher(stops)
        assert (matcher.push(text), matcher.matched) == (cut, which)
        by_char = StopMatcher(stops)
        assert "".join(map(by_char.push, text)) == cut


def test_text_after_a_match_is_dropped() -> None:
    matcher = StopMatcher(["stop"])
    assert matcher.push("go st") == "go "
    assert matcher.push("op now") == ""
    assert matcher.matched == "stop"
    assert matcher.push("more") == ""
    assert matcher.flush() == ""


def test_held_text_comes_back() -> None:
    matcher = StopMatcher(["stop"])
    assert matcher.push("go sto") == "go "
    assert matcher.push("re") == "store"
    assert matcher.push(" st") == " "
    assert matcher.flush() == "st"


def test_include_holds_nothing_back() -> None:
    matcher = StopMatcher(["stop"], include_in_output=True)
    assert [matcher.push(t) for t in ("go sto", "p now", "more")] == ["go sto", "p", ""]


def test_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def test_linear_time_on_the_worst_text() -> None:
    """Long stops that almost match everywhere; quadratic work would take minutes."""
    matcher = StopMatcher(["a" * 1023 + "b", "a" * 1000 + "c"])
    start = time.perf_counter()
    out = sum(len(matcher.push("a")) for _ in range(200_000))
    assert out == 200_000 - 1023
    assert time.perf_counter() - start < 5
