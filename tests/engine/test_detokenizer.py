"""Incremental text against the tokenizer's own decode of all ids, for every decoder family."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferx.engine.detokenizer import Detokenizer, TokenTexts
from inferx.loader.tokenizer import Tokenizer

sys.path.insert(0, str(Path(__file__).parent))
import toy_tokenizers as toys

HARD = "😀歪é👨‍👩‍👧"
KINDS = {"smollm2": "bytes", "llama": "byte_fallback", "gemma": "byte_fallback", "metaspace": "window"}


@cache
def texts(name: str) -> TokenTexts:
    return TokenTexts(dict(toys.all_tokenizers())[name])


def pieces(name: str, ids: Sequence[int], *, skip: bool = True, prompt: Sequence[int] = ()) -> list[str]:
    """One piece per token, and the flushed rest."""
    detokenizer = Detokenizer(texts(name), skip_special_tokens=skip, prompt_token_ids=prompt)
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


def tokenizer(name: str) -> Tokenizer:
    return dict(toys.all_tokenizers())[name]


@pytest.mark.parametrize("name", KINDS)
def test_the_rule_found(name: str) -> None:
    assert texts(name).kind == KINDS[name]
    assert texts(name).strips_space == (name == "llama")


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(sorted(KINDS)), st.booleans())
def test_any_ids(data: st.DataObject, name: str, skip: bool) -> None:
    """Random ids are mostly broken UTF-8: every replacement character must be where decode puts it."""
    low = st.integers(0, min(300, tokenizer(name).vocab_size - 1))  # special and byte tokens are there
    ids = data.draw(st.lists(low | st.integers(0, tokenizer(name).vocab_size - 1), max_size=40))
    got = pieces(name, ids, skip=skip)
    full = tokenizer(name).decode(ids, skip_special_tokens=skip)
    if name == "metaspace":
        assert "".join(got) == full
        return
    so_far = ""
    for piece in got:
        so_far += piece
        assert full.startswith(so_far)
    assert so_far == full


@settings(max_examples=150, deadline=None)
@given(
    st.text(max_size=60) | st.text(alphabet="ab é歪😀\n\t  ", max_size=60),
    st.sampled_from(["smollm2", "llama", "gemma"]),
)
def test_any_text(text: str, name: str) -> None:
    ids = tokenizer(name).encode(text, add_special_tokens=False)
    got = pieces(name, ids)
    full = tokenizer(name).decode(ids)
    assert "".join(got) == full
    # No piece has a replacement character of its own (a vocabulary may lack rare bytes; then decode has it).
    assert sum(piece.count("\ufffd") for piece in got) == full.count("\ufffd")


@pytest.mark.parametrize("name", ["smollm2", "llama", "gemma"])
def test_characters_over_several_tokens(name: str) -> None:
    ids = tokenizer(name).encode(HARD, add_special_tokens=False)
    got = pieces(name, ids)
    assert "".join(got) == HARD
    assert "\ufffd" not in "".join(got)
    assert len(ids) > len(HARD)  # some tokens are parts of characters and give no piece
    assert "" in got[:-1]


@pytest.mark.parametrize("name", KINDS)
def test_spaces(name: str) -> None:
    text = "Hello world  a    b\n\tc" if name != "metaspace" else "Hello world  a  b"
    ids = tokenizer(name).encode(text, add_special_tokens=False)
    assert "".join(pieces(name, ids)) == tokenizer(name).decode(ids) == text


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("skip", [True, False])
def test_special_tokens_in_the_middle(name: str, skip: bool) -> None:
    tok = tokenizer(name)
    special = next(i for i in range(tok.vocab_size) if tok.is_special(i))
    ids = [*tok.encode("Hello", False), special, *tok.encode("world", False), special]
    text = "".join(pieces(name, ids, skip=skip))
    assert text == tok.decode(ids, skip_special_tokens=skip)
    assert (tok.id_to_token(special) in text) == (not skip)


@pytest.mark.parametrize("name", KINDS)
def test_an_answer_keeps_the_space_that_belongs_after_the_prompt(name: str) -> None:
    tok = tokenizer(name)
    whole = tok.encode("Hello world", add_special_tokens=False)
    assert len(whole) == 2
    assert pieces(name, whole[1:], prompt=whole[:1]) == [" world", ""]


def test_an_answer_after_nothing_visible_begins_like_a_text() -> None:
    tok = tokenizer("llama")
    hello = tok.encode("Hello world", add_special_tokens=False)
    assert "".join(pieces("llama", hello, prompt=[1])) == "Hello world"
    # Shown special tokens are text too.
    assert "".join(pieces("llama", hello, prompt=[1], skip=False)) == " Hello world"


def test_flush_gives_the_incomplete_character() -> None:
    ids = tokenizer("smollm2").encode("歪", add_special_tokens=False)[:-1]
    assert ids
    assert pieces("smollm2", ids)[-1] == tokenizer("smollm2").decode(ids) == "\ufffd"
    ids = tokenizer("gemma").encode("歪", add_special_tokens=False)[:-1]
    assert pieces("gemma", ids)[-1] == tokenizer("gemma").decode(ids) == "\ufffd\ufffd"


def test_a_byte_run_waits_for_its_end() -> None:
    """In a run of byte tokens one bad byte spoils the characters before it."""
    tok = tokenizer("gemma")
    good = tok.encode("歪", add_special_tokens=False)
    bad = next(i for i in range(tok.vocab_size) if tok.id_to_token(i) == "<0xFF>")
    letter = tok.encode("a", add_special_tokens=False)
    assert pieces("gemma", [*good, *letter]) == ["", "", "", "歪a", ""]
    assert pieces("gemma", [*good, bad, *letter]) == ["", "", "", "", "\ufffd" * 4 + "a", ""]


class CountingTokenizer:
    """Counts the ids that go through decode."""

    def __init__(self, inner: Tokenizer) -> None:
        self.inner = inner
        self.vocab_size = inner.vocab_size
        self.decoded = 0

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        self.decoded += len(token_ids)
        return self.inner.decode(token_ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self.inner.token_bytes(token_id)

    def id_to_token(self, token_id: int) -> str:
        return self.inner.id_to_token(token_id)

    def is_special(self, token_id: int) -> bool:
        return self.inner.is_special(token_id)


@pytest.mark.parametrize("name", KINDS)
def test_the_work_is_linear(name: str) -> None:
    counting = CountingTokenizer(tokenizer(name))
    shared = TokenTexts(counting)
    counting.decoded = 0
    ids = random.Random(0).choices(range(3, counting.vocab_size), k=5000)
    # The worst for a window: never a complete character.
    ids += [random.Random(1).choice(ids)] * 10 + [0] * 500
    detokenizer = Detokenizer(shared, skip_special_tokens=False)
    for i in ids:
        detokenizer.push(i)
    detokenizer.flush()
    assert counting.decoded <= (100 * len(ids) if KINDS[name] == "window" else 100)


@pytest.mark.parametrize("name", ["smollm2", "gemma"])
def test_windows_hold_unfinished_characters_back(name: str) -> None:
    """The way of a tokenizer that no rule fits, with vocabularies where its answer is known."""
    shared = TokenTexts(tokenizer(name))
    shared.kind = "window"
    ids = tokenizer(name).encode(f"a  b{HARD} c\n", add_special_tokens=False)
    detokenizer = Detokenizer(shared, prompt_token_ids=ids[:2])
    got = [*(detokenizer.push(i) for i in ids[2:]), detokenizer.flush()]
    assert "".join(got) == tokenizer(name).decode(ids)[len(tokenizer(name).decode(ids[:2])) :]
    assert "\ufffd" not in "".join(got)


@pytest.mark.parametrize("name", KINDS)
def test_a_special_token_that_shows(name: str) -> None:
    """As if no special token were skipped, when there is only that one; others still are."""
    tok = tokenizer(name)
    shown, other = [i for i in range(tok.vocab_size) if tok.is_special(i)][:2]
    words = [tok.encode(text, add_special_tokens=False) for text in ("a b", " c", "d")]
    ids = [*words[0], shown, *words[1], shown, shown, *words[2]]
    hiding = [*words[0], shown, other, *words[1], shown, shown, *words[2], other]
    detokenizer = Detokenizer(texts(name), shown_special_token_ids=[shown])
    got = [*(detokenizer.push(i) for i in hiding), detokenizer.flush()]
    assert "".join(got) == tok.decode(ids, skip_special_tokens=False)
    assert got[len(words[0])].endswith(tok.id_to_token(shown))


def test_names_for_logprobs() -> None:
    tok, shared = tokenizer("smollm2"), texts("smollm2")
    ids = tok.encode(HARD, add_special_tokens=False)
    assert b"".join(shared.name(i)[1] for i in ids) == HARD.encode()
    end = tok.eos_token_ids[0]
    assert shared.name(end) == (tok.id_to_token(end), b"")
    assert shared.name(tok.encode(" world", False)[0]) == (" world", b" world")
    assert "\ufffd" in shared.name(ids[1])[0]
