"""Small tokenizers of each decoder family, wrapped as the engine sees them, and the real SmolLM2."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from inferx.loader import open_checkpoint
from inferx.loader.tokenizer import Tokenizer, load_tokenizer

WORDS = [
    "Hello",
    "world",
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "so",
    "it",
    "goes",
    "END",
    "stop",
    "1",
]
SPACE = "\u2581"


@cache
def smollm2() -> Tokenizer:
    """Byte-level BPE, 49152 tokens."""
    return load_tokenizer(open_checkpoint("smollm2-135m-instruct"))


@cache
def sentencepiece(kind: str = "llama") -> Tokenizer:
    """A SentencePiece-style BPE with byte fallback.  ``llama``: decode drops the first space; ``gemma``: it
    does not, and texts begin without one."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    merges: list[list[str]] = []
    for char in sorted(set("".join(WORDS) + "abcdefghijklmnopqrstuvwxyzé,.!\n" + SPACE)):
        vocab[char] = len(vocab)
    for word in [SPACE + SPACE, *(SPACE + w for w in WORDS), *WORDS]:
        for end in range(2, len(word) + 1):
            piece = word[:end]
            if piece not in vocab:
                vocab[piece] = len(vocab)
                merges.append([word[: end - 1], word[end - 1]])
    space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    normalizer: dict[str, Any] = space
    if kind == "llama":
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, space]}
    return _wrap(vocab, merges, normalizer, None, {"type": "Sequence", "decoders": decoders})


@cache
def metaspace() -> Tokenizer:
    """Its decode drops all spaces of the first token: no rule on bytes reproduces that."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for piece in [
        *sorted(set("".join(WORDS) + "bfjklpqruvwxyz,." + SPACE)),
        *(SPACE + w for w in WORDS),
        SPACE * 2,
    ]:
        vocab.setdefault(piece, len(vocab))
    scheme = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    return _wrap(vocab, [], None, scheme, scheme)


def _wrap(vocab: dict[str, int], merges: Any, normalizer: Any, pre_tokenizer: Any, decoder: Any) -> Tokenizer:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    special = [{"id": i, "content": token, **flags} for i, token in enumerate(["<unk>", "<s>", "</s>"])]
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": "<0x00>" in vocab,
            "ignore_merges": True,
            "vocab": vocab,
            "merges": merges,
        },
    }
    return Tokenizer(json.dumps(description), bos_token_id=1, eos_token_ids=[2])


def all_tokenizers() -> list[tuple[str, Tokenizer]]:
    return [
        ("smollm2", smollm2()),
        ("llama", sentencepiece("llama")),
        ("gemma", sentencepiece("gemma")),
        ("metaspace", metaspace()),
    ]
