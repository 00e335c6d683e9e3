"""The splitting rules of byte-level BPE, by name, against those written out in ``plain_bpe``."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny_gguf
from plain_bpe import RULES, TEXTS, PlainBPE, random_texts, split
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from inferx.loader import gguf_splits, load_tokenizer, open_checkpoint
from inferx.loader.gguf_file import GGUFFile


def test_every_rule_is_checked_here() -> None:
    assert set(gguf_splits.RULES) == set(RULES)


@pytest.mark.parametrize("pre", RULES)
def test_words(pre: str, tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", pre=pre)
    raw = load_tokenizer(open_checkpoint(path))._raw
    for text in [*TEXTS, *random_texts(5, 100)]:
        text = unicodedata.normalize("NFC", text)
        pieces = raw.pre_tokenizer.pre_tokenize_str(text)
        assert [text[a:b] for _, (a, b) in pieces] == split(text, pre), repr(text)


@pytest.fixture(scope="module")
def merges() -> list[str]:
    """Of whole texts, so that merges cross the borders of words wherever a rule lets them."""
    trainer = trainers.BpeTrainer(
        vocab_size=1200, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.train_from_iterator([*TEXTS, *random_texts(5, 100)] * 2, trainer)
    return [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


@pytest.mark.parametrize("pre", RULES)
def test_ids(pre: str, merges: list[str], tmp_path: Path) -> None:
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    tokens = list(dict.fromkeys(tokens))
    assert len(tokens) > 1000

    def vocabulary(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
        writer.add_token_merges(merges)

    embedding = {"token_embd.weight": np.zeros((len(tokens), tiny_gguf.HIDDEN), np.float32)}
    tensors = tiny_gguf.default_tensors() | embedding
    path = tiny_gguf.write(tmp_path / "m.gguf", tokenizer=False, metadata=vocabulary, tensors=tensors)
    tokenizer, oracle = load_tokenizer(open_checkpoint(path)), PlainBPE(GGUFFile(path))
    for text in [*TEXTS, *random_texts(6, 100)]:
        assert tokenizer.encode(text, add_special_tokens=False) == oracle.encode(text), repr(text)


def test_no_two_rules_are_the_same() -> None:
    """Guards the texts: each rule splits one of them as no other does, but where names share a rule."""
    words = {pre: tuple(tuple(split(text, pre)) for text in TEXTS) for pre in RULES}
    groups = [
        {"gpt-2", "default", "phi-2", "olmo"},
        {"smollm", "starcoder"},
        {"qwen2", "deepseek-r1-qwen"},
        {"llama-bpe", "llama3", "llama-v3", "dbrx"},
    ]
    for first in RULES:
        for second in RULES:
            together = first == second or any({first, second} <= group for group in groups)
            assert (words[first] == words[second]) == together, (first, second)


def test_every_letter_of_deepseek(tmp_path: Path) -> None:
    """Behind an accented letter, which no later step of the rule splits off."""
    path = tiny_gguf.write(tmp_path / "m.gguf", pre="deepseek-llm")
    raw = load_tokenizer(open_checkpoint(path))._raw
    characters = [chr(code) for code in range(0xA0, 0x20000) if not 0xD800 <= code < 0xE000]
    # What the two libraries' versions of Unicode agree on.
    known = [c for c in characters if unicodedata.category(c) not in ("Cn", "Nd", "Nl", "No")]
    text = "\n".join("é" + c for c in known)
    pieces = raw.pre_tokenizer.pre_tokenize_str(text)
    assert [text[a:b] for _, (a, b) in pieces] == split(text, "deepseek-llm")
