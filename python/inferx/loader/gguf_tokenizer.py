"""The vocabulary inside a GGUF file as a ``tokenizers`` JSON.

Two families exist.  "gpt2": byte-level BPE with explicit merges, after a splitting rule that is only named
(``gguf_splits``).  "llama": SentencePiece BPE, where a piece's score is the priority of the merge that makes
it; merges are recovered from the pieces.  Control tokens become special added tokens, user-defined ones plain
added tokens.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from typing import Any

from inferx.errors import LoadError
from inferx.loader.gguf_file import GGUFFile
from inferx.loader.gguf_splits import RULES

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"  # how SentencePiece writes a space

_PLACEHOLDER = re.compile(r"\[PAD\d+\]")


def tokenizer_json(file: GGUFFile) -> str:
    """LoadError when the vocabulary is missing, inconsistent, or of a kind that is not supported."""
    kind = file.metadata.get("tokenizer.ggml.model")
    vocabulary = _Vocabulary(file)
    if kind == "gpt2":
        description = _byte_level(vocabulary)
    elif kind == "llama":
        description = _sentencepiece(vocabulary)
    else:
        raise LoadError(f"{file.path}: tokenizer {kind!r} is not supported (supported: 'gpt2', 'llama')")
    return json.dumps(description, ensure_ascii=False)


class _Vocabulary:
    """Tokens, their types and the flags around them, checked for consistency."""

    def __init__(self, file: GGUFFile) -> None:
        self.path = file.path
        self._metadata = file.metadata
        self.tokens: list[str] = self._strings("tokens")
        types = self.get("token_type")
        if types is None:
            types = array("i", [NORMAL]) * len(self.tokens)
        if not isinstance(types, array) or len(types) != len(self.tokens):
            raise LoadError(
                f"{self.path}: tokenizer.ggml.token_type does not match the {len(self.tokens)} tokens"
            )
        self.types: list[int] = types.tolist()
        if len(set(self.tokens)) != len(self.tokens):
            self._rename_duplicates()

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def _strings(self, key: str) -> list[str]:
        value = self.get(key)
        if not isinstance(value, list) or not value:
            raise LoadError(
                f"{self.path}: metadata 'tokenizer.ggml.{key}' is missing or not a list of strings"
            )
        return value

    def _rename_duplicates(self) -> None:
        """Only the first of equal tokens can be encoded; the others keep their ids under made-up names."""
        seen: set[str] = set()
        for index, token in enumerate(self.tokens):
            if token in seen:
                self.tokens[index] = token = f"[PAD{index}]"
                self.types[index] = UNUSED
            seen.add(token)

    def merges(self, vocab: dict[str, int]) -> list[str]:
        """Explicit merges, as "left right"; parts and what they make are in ``vocab``."""
        merges = self._strings("merges")
        for merge in merges:
            # A part never holds a plain space.
            left, _, right = merge.partition(" ")
            if not left or not right or " " in right:
                raise LoadError(f"{self.path}: tokenizer.ggml.merges has the malformed entry {merge!r}")
            if left not in vocab or right not in vocab or left + right not in vocab:
                raise LoadError(
                    f"{self.path}: tokenizer.ggml.merges joins {left!r} and {right!r}, "
                    "which is not among the tokens"
                )
        return merges

    def token_id(self, name: str) -> int | None:
        value = self.get(f"{name}_token_id")
        return value if isinstance(value, int) and 0 <= value < len(self.tokens) else None

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        return value if isinstance(value, bool) else default

    def encodable(self) -> dict[str, int]:
        """token -> id without the placeholders that only fill up the embedding table."""
        return {
            token: index
            for index, token in enumerate(self.tokens)
            if not (self.types[index] == UNUSED and _PLACEHOLDER.fullmatch(token))
        }

    def added_tokens(
        self, rstrip: frozenset[str] = frozenset(), normalise_spaces: bool = False
    ) -> list[dict[str, Any]]:
        """normalise_spaces: user-defined runs of spaces also match runs of the space sign."""
        return [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": token in rstrip,
                "normalized": normalise_spaces and kind == USER_DEFINED and " " in token,
                "special": kind == CONTROL,
            }
            for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (CONTROL, USER_DEFINED) and token
        ]

    def template(self, bos_by_default: bool) -> dict[str, Any] | None:
        """The post-processor that adds BOS and EOS."""
        bos = self.token_id("bos") if self.flag("add_bos_token", bos_by_default) else None
        eos = self.token_id("eos") if self.flag("add_eos_token", False) else None
        if bos is None and eos is None:
            return None

        def special(index: int | None, type_id: int) -> list[dict[str, Any]]:
            return [] if index is None else [{"SpecialToken": {"id": self.tokens[index], "type_id": type_id}}]

        def sequence(name: str, type_id: int) -> list[dict[str, Any]]:
            return [
                *special(bos, type_id),
                {"Sequence": {"id": name, "type_id": type_id}},
                *special(eos, type_id),
            ]

        return {
            "type": "TemplateProcessing",
            "single": sequence("A", 0),
            "pair": sequence("A", 0) + sequence("B", 1),
            "special_tokens": {
                self.tokens[index]: {"id": self.tokens[index], "ids": [index], "tokens": [self.tokens[index]]}
                for index in (bos, eos)
                if index is not None
            },
        }


def _bpe(vocab: dict[str, int], merges: list[str] | list[list[str]], **settings: Any) -> dict[str, Any]:
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return model | settings | {"vocab": vocab, "merges": merges}


def _description(**parts: Any) -> dict[str, Any]:
    return {"version": "1.0", "truncation": None, "padding": None} | parts


# ---- byte-level BPE


def _byte_level(vocabulary: _Vocabulary) -> dict[str, Any]:
    pre = vocabulary.get("pre", "default")
    rule = RULES.get(pre) if isinstance(pre, str) else None
    if rule is None:
        raise LoadError(
            f"{vocabulary.path}: pre-tokenizer {pre!r} is not supported "
            f"(supported: {', '.join(sorted(RULES))})"
        )
    vocab = vocabulary.encodable()
    merges = vocabulary.merges(vocab)
    prefix = vocabulary.flag("add_space_prefix", False)
    return _description(
        added_tokens=vocabulary.added_tokens(),
        normalizer={"type": "NFC"} if rule.nfc else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": rule.pre_tokenizers(prefix)},
        post_processor=vocabulary.template(rule.bos),
        decoder={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        model=_bpe(vocab, merges, ignore_merges=rule.whole_words),
    )


# ---- SentencePiece BPE


def _sentencepiece(vocabulary: _Vocabulary) -> dict[str, Any]:
    scores = vocabulary.get("scores")
    if (
        not isinstance(scores, array)
        or len(scores) != len(vocabulary.tokens)
        or scores.typecode not in ("f", "d")
    ):
        raise LoadError(f"{vocabulary.path}: tokenizer.ggml.scores does not match the tokens")
    if not all(map(math.isfinite, scores)):
        raise LoadError(f"{vocabulary.path}: tokenizer.ggml.scores holds values that are not finite")
    vocab = vocabulary.encodable()
    unknown = vocabulary.token_id("unknown")
    prefix = vocabulary.flag("add_space_prefix", True)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
    restore = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    rstrip = _right_stripping(vocabulary)
    return _description(
        added_tokens=vocabulary.added_tokens(rstrip, normalise_spaces=not prefix),
        normalizer={"type": "Sequence", "normalizers": [*steps, replace]},
        pre_tokenizer=None,
        post_processor=vocabulary.template(bos_by_default=True),
        decoder={
            "type": "Sequence",
            "decoders": [restore, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
        },
        model=_bpe(
            vocab,
            _merges_from_scores(vocabulary, scores.tolist()),
            unk_token=vocabulary.tokens[unknown] if unknown is not None else None,
            fuse_unk=True,
            byte_fallback=BYTE in vocabulary.types,
        ),
    )


def _right_stripping(vocabulary: _Vocabulary) -> frozenset[str]:
    """Phi-3's turn markers swallow the white space after them; the file has no field for it."""
    if not {"<|assistant|>", "<|end|>", "<|user|>"} <= set(vocabulary.tokens):
        return frozenset()
    keep = {"<unk>", "<s>", "<|endoftext|>"}
    controls = (t for t, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == CONTROL)
    return frozenset(token for token in controls if token not in keep)


def _merges_from_scores(vocabulary: _Vocabulary, scores: list[float]) -> list[list[str]]:
    """Every way to join two pieces into a piece, best piece first.

    SentencePiece joins the neighbours whose union has the highest score, so the order of merges is the
    order of the pieces they make.  Only normal pieces take part: user-defined ones are matched before any
    merge.
    """
    tokens = vocabulary.tokens
    index_of = {token: i for i, token in enumerate(tokens) if vocabulary.types[i] == NORMAL}
    found: list[tuple[float, int, int]] = []
    for token, index in index_of.items():
        for cut in range(1, len(token)):
            left = index_of.get(token[:cut])
            if left is not None:
                right = index_of.get(token[cut:])
                if right is not None:
                    found.append((-scores[index], left, right))
    found.sort()
    return [[tokens[left], tokens[right]] for _, left, right in found]
