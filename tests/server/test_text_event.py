"""TextEvent gives the bytes that encoding the whole event gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferx.server.streaming import event
from inferx.server.text_event import TextEvent

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(name=TEXT, texts=st.lists(TEXT, min_size=1, max_size=5))
def test_same_bytes(name: str, texts: list[str]) -> None:
    def make(text: str) -> dict[str, object]:
        return {"model": name, "choices": [{"index": 0, "text": text, "finish_reason": None}], "z": [name]}

    made = TextEvent(make)
    for text in texts:
        assert made(text) == event(make(text))


def test_an_event_without_the_text_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        TextEvent(lambda text: {"text": text + "!"})
