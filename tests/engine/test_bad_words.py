"""bad_words: which token sequences are banned, and that the banned text does not come out."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch

from inferx.engine.bad_words import MAX_SPELLED_BYTES, MAX_SPELLINGS, encode_bad_words, spellings
from inferx.engine.sampler import Sampler, SampleRow
from inferx.errors import InvalidRequestError
from inferx.loader.tokenizer import Tokenizer
from inferx.sampling_params import SamplingParams

sys.path.insert(0, str(Path(__file__).parent))
import toy_tokenizers as toys


def bytes_of(tokenizer: Tokenizer, ids: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


@pytest.mark.parametrize(
    "tokenizer", [toys.smollm2(), toys.sentencepiece("llama"), toys.sentencepiece("gemma")]
)
@pytest.mark.parametrize("word", ["cat", " cat", "world", "sat on", "é", "歪"])
def test_both_forms_in_every_spelling(tokenizer: Tokenizer, word: str) -> None:
    sequences = encode_bad_words([word], tokenizer)
    bare = word.strip().encode()
    texts = {bytes_of(tokenizer, s) for s in sequences}
    assert {bare, b" " + bare} <= texts
    # A leading-space vocabulary may write the spaced form with one more space.
    assert {t.lstrip(b" ") for t in texts} == {bare}
    assert len({tuple(s) for s in sequences}) == len(sequences)
    for form in (bare.decode(), " " + bare.decode()):
        assert tokenizer.encode(form, add_special_tokens=False) in sequences


def test_a_word_that_is_one_token_after_a_space_and_several_without() -> None:
    tokenizer = toys.smollm2()
    words = ["Wikipedia", "nonetheless", "photosynthesis", "biodiversity", "ecosystems"]
    word = next(w for w in words if len(tokenizer.encode(" " + w)) == 1 < len(tokenizer.encode(w)))
    sequences = encode_bad_words([word], tokenizer)
    assert tokenizer.encode(" " + word) in sequences
    assert tokenizer.encode(word) in sequences


def test_spellings_are_all_and_the_shortest_first() -> None:
    tokenizer = toys.sentencepiece("gemma")
    ids = [i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i)]
    every = [
        seq
        for n in range(1, 4)
        for seq in itertools.product([i for i in ids if tokenizer.token_bytes(i) in b"cat"], repeat=n)
        if bytes_of(tokenizer, list(seq)) == b"cat"
    ]
    assert len(every) > 8
    got = spellings(b"cat", tokenizer, limit=1000)
    assert sorted(got) == sorted(every)
    assert [len(s) for s in got] == sorted(len(s) for s in got)
    # A cut list is the beginning of the whole one.
    assert spellings(b"cat", tokenizer, limit=5) == got[:5]


def test_long_phrases_are_bounded() -> None:
    tokenizer = toys.smollm2()
    phrase = "the cat sat on the mat and " * 30
    assert len(encode_bad_words([phrase[:1000]], tokenizer)) == 2
    assert len(encode_bad_words(["a" * (MAX_SPELLED_BYTES - 1)], tokenizer)) <= 2 * MAX_SPELLINGS + 2


def test_a_space_alone_and_special_tokens() -> None:
    tokenizer = toys.smollm2()
    assert {bytes_of(tokenizer, s) for s in encode_bad_words([" "], tokenizer)} == {b" "}
    end = tokenizer.id_to_token(tokenizer.eos_token_ids[0])
    assert [tokenizer.eos_token_ids[0]] in encode_bad_words([end], tokenizer)


class Mute:
    """A tokenizer to which nothing is a token."""

    vocab_size = 3

    def encode(self, text: str, /, add_special_tokens: bool = True) -> list[int]:
        return []

    def token_bytes(self, token_id: int, /) -> bytes:
        return b""


@pytest.mark.parametrize("word", ["\u0000", "x"])
def test_an_entry_without_tokens_is_refused(word: str) -> None:
    with pytest.raises(InvalidRequestError, match="no tokens") as caught:
        encode_bad_words([word], Mute())
    assert caught.value.param == "bad_words"
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(bad_words=[""]).validate()
    assert caught.value.param == "bad_words"


def test_the_word_does_not_come_out() -> None:
    """A model that wants nothing but " cat" in any spelling; twenty seeds and greedy."""
    tokenizer = toys.sentencepiece("gemma")
    liked = [i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) in (b" cat", b" ca", b" c", b"cat", b"c", b"at", b"a", b"t", b" ", b" sat")]  # fmt: skip  # noqa: E501
    logits = torch.full((1, tokenizer.vocab_size), -20.0)
    logits[0, liked] = 5.0

    def text(bad_words: list[str], temperature: float, seed: int) -> str:
        params = SamplingParams(temperature=temperature, bad_words=bad_words, max_tokens=None)
        if bad_words:
            params.bad_words_token_ids = encode_bad_words(bad_words, tokenizer)
        output: list[int] = []
        row = SampleRow(params, [1], output, seed, 0)
        for step in range(40):
            row.step = step
            token = Sampler(tokenizer.vocab_size).sample(logits, [row])[0].token_id
            assert token is not None
            output.append(token)
        return tokenizer.decode(output)

    assert sum("cat" in text([], 1.0, seed) for seed in range(20)) > 10
    for seed in range(20):
        got = text(["cat"], 1.0, seed)
        assert "cat" not in got
    assert "cat" not in text(["cat"], 0.0, 0)
    # Of a phrase, the beginning alone is still allowed.
    phrase = text(["cat sat"], 1.0, 3) + text(["cat sat"], 1.0, 4)
    assert "cat" in phrase
    assert "cat sat" not in phrase
