"""Log-probabilities: shapes of both endpoints, alignment with the text, characters split over tokens."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from fake_engine import FakeEngine, entry, make_tokenizer

from inferx.engine.protocol import TokenLogprobs
from inferx.server.logprobs import TokenAligner, TokenNames, align_prompt, completion_logprobs

EMOJI = "a😀歪é👨‍👩‍👧!"


def merged(chunks: list[dict[str, Any]]) -> dict[str, list[Any] | None]:
    parts = [c["choices"][0]["logprobs"] for c in chunks if c["choices"]]
    keys = ("tokens", "token_logprobs", "text_offset", "top_logprobs")
    return {
        k: None if parts[0][k] is None else list(itertools.chain.from_iterable(p[k] for p in parts))
        for k in keys
    }


def test_completion_arrays_agree_with_the_text(complete: Any, engine: FakeEngine) -> None:
    engine.answer = "world three\n\n1. x"
    body = {"prompt": "\n1. Hello world", "echo": True, "logprobs": 1, "max_tokens": 5}
    choice = complete(**body)["choices"][0]
    logprobs = choice["logprobs"]
    tokens = logprobs["tokens"]
    assert "".join(tokens) == choice["text"]
    assert logprobs["text_offset"] == [len("".join(tokens[:i])) for i in range(len(tokens))]
    assert len({len(v) for v in logprobs.values()}) == 1
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(x == -4.0 for x in logprobs["token_logprobs"][1:])
    # The likeliest (id 10, a line feed) and the token itself.
    assert logprobs["top_logprobs"][1] == {"\n": -0.5, tokens[1]: -4.0}
    assert merged(complete(stream=True, **body)) == logprobs


def test_zero_is_a_number_and_not_off(complete: Any) -> None:
    logprobs = complete(logprobs=0, max_tokens=4)["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 4
    assert logprobs["top_logprobs"] is None


@pytest.mark.parametrize("value", [-1, 21, "1", True])
def test_out_of_range(complete: Any, value: Any) -> None:
    assert complete(expect=400, logprobs=value)["error"]["param"] == "logprobs"


def test_chat_without_alternatives(chat: Any) -> None:
    answer = chat(logprobs=True)
    items = answer["choices"][0]["logprobs"]["content"]
    assert len(items) == answer["usage"]["completion_tokens"]
    assert all(set(i) == {"token", "logprob", "bytes", "top_logprobs"} for i in items)
    assert all(i["top_logprobs"] == [] and i["logprob"] == -4.0 for i in items)
    assert items[-1]["token"] == "<|im_end|>"
    assert items[-1]["bytes"] == []


def test_chat_alternatives_and_split_characters(chat: Any, engine: FakeEngine) -> None:
    engine.answer = EMOJI
    choice = chat(logprobs=True, top_logprobs=5)["choices"][0]
    items = choice["logprobs"]["content"]
    assert choice["message"]["content"] == EMOJI
    assert bytes(itertools.chain.from_iterable(i["bytes"] for i in items)) == EMOJI.encode()
    for item in items:
        values = [t["logprob"] for t in item["top_logprobs"]]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
    assert items[1]["token"] == "\\xf0"  # the first byte of the emoji by itself
    chunks = chat(logprobs=True, top_logprobs=5, stream=True)
    streamed = [i for c in chunks for i in ((c["choices"][0]["logprobs"] or {}).get("content") or [])]
    assert streamed == items
    # A chunk's tokens are those of its text.
    for chunk in chunks:
        item = chunk["choices"][0]
        if item["delta"].get("content"):
            data = itertools.chain.from_iterable(i["bytes"] for i in item["logprobs"]["content"])
            assert bytes(data).decode() == item["delta"]["content"]


def test_equal_texts_do_not_merge_in_chat_but_the_likelier_wins_in_completions() -> None:
    names = TokenNames(make_tokenizer())
    first, same = 300, 301  # ids without a token: both have the empty text
    aligner = TokenAligner(names)
    aligner.push([65], [TokenLogprobs([65, first, same], [-3.0, -0.1, -0.2], 9)])
    tokens = aligner.release(1, finished=True)
    assert completion_logprobs(tokens, names, 2)["top_logprobs"] == [{"": -0.1, "A": -3.0}]


def test_minus_infinity_becomes_a_number() -> None:
    names = TokenNames(make_tokenizer())
    aligner = TokenAligner(names)
    aligner.push([65], [TokenLogprobs([65], [float("-inf")], 9)])
    assert completion_logprobs(aligner.release(1, finished=True), names, 0)["token_logprobs"] == [-9999.0]


def test_tokens_behind_a_stop_string_are_not_listed(complete: Any, engine: FakeEngine) -> None:
    engine.answer = "one two three four"
    body = {"stop": "o thr", "logprobs": 0, "max_tokens": 50}
    choice = complete(**body)["choices"][0]
    assert choice["text"] == "one tw"
    assert "".join(choice["logprobs"]["tokens"]) == "one tw"
    assert merged(complete(stream=True, **body)) == choice["logprobs"]


def test_released_tokens_never_depend_on_the_chunks() -> None:
    """Random texts and random withheld lengths: streamed = whole, and pieces cover the text."""
    tokenizer = make_tokenizer()
    names = TokenNames(tokenizer)
    for seed in range(60):
        rng = random.Random(seed)
        text = "".join(rng.choice(["Hello", " world", "😀", "歪", "é", "x", " three"]) for _ in range(12))
        ids = tokenizer.encode(text)
        cut = rng.randrange(len(text) + 1)
        trim = rng.random() < 0.5
        whole = TokenAligner(names)
        whole.push(ids, [entry(i, 0) for i in ids])
        expected = whole.release(cut if trim else len(text), finished=True, trim=trim)
        parts = TokenAligner(names)
        got, known, out = [], 0, 0
        data = b""
        for i in ids:
            parts.push([i], [entry(i, 0)])
            data += tokenizer.token_bytes(i)
            known = len(data.decode("utf-8", "ignore"))
            out = min(rng.randint(out, known), cut if trim else known)
            got += parts.release(out)
        got += parts.release(cut if trim else len(text), finished=True, trim=trim)
        assert got == expected, seed
        if not trim:
            assert "".join(t.piece for t in got) == text, seed
        else:
            assert all(t.offset < cut for t in got if t.piece), seed


def test_bytes_that_never_become_a_character() -> None:
    names = TokenNames(make_tokenizer())
    aligner = TokenAligner(names)
    aligner.push([65, 0xF0, 0x9F], [entry(i, 0) for i in (65, 0xF0, 0x9F)])
    assert "".join(t.piece for t in aligner.release(2, finished=True)) == "A\ufffd"


def test_echoed_prompt_with_added_and_written_control_tokens() -> None:
    tokenizer = make_tokenizer()
    text = "Hello<|im_end|> world"
    written = tokenizer.encode(text)
    ids = [tokenizer.eos_token_ids[0], *written]  # as if the tokenizer had put one in front
    tokens = align_prompt(ids, [None] * len(ids), text, TokenNames(tokenizer))
    assert "".join(t.piece for t in tokens) == text
    assert tokens[0].piece == ""
    assert tokens[0].offset == tokens[1].offset == 0
