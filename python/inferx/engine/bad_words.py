"""bad_words: from text to the token sequences that must not be completed.

A word is banned as it stands and with a space in front, which is its usual form inside a sentence, and
in whatever way the vocabulary can spell it: a model that may not say " Paris" likes to say " Par", "is".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from inferx.errors import InvalidRequestError

# Spellings per form of a word, fewest tokens first, and the longest form (in bytes) that is spelled out.
# There are exponentially many, of which a model writes the short ones; the canonical one is always there.
MAX_SPELLINGS = 64
MAX_SPELLED_BYTES = 32


class TokenizerLike(Protocol):
    """The part of ``loader.tokenizer.Tokenizer`` that bad_words needs."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, /, add_special_tokens: bool = True) -> list[int]: ...

    def token_bytes(self, token_id: int, /) -> bytes: ...

    def __hash__(self) -> int: ...


def encode_bad_words(words: Sequence[str], tokenizer: TokenizerLike) -> list[list[int]]:
    """Every token sequence that spells one of ``words``, without duplicates.

    The last token of a sequence is never sampled while the output ends with the others.  Words inside
    longer tokens ("art" in "party") are other words.  InvalidRequestError (param bad_words) when an entry
    has no tokens.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        forms = [word]
        bare = word.lstrip(" ")
        if bare:
            forms = [bare, " " + bare]
        found: dict[tuple[int, ...], None] = {}
        for form in forms:
            canonical = tokenizer.encode(form, add_special_tokens=False)
            if canonical:
                found[tuple(canonical)] = None
            data = form.encode("utf-8")
            if len(data) <= MAX_SPELLED_BYTES:
                found.update(dict.fromkeys(spellings(data, tokenizer)))
        if not found:
            raise InvalidRequestError(
                f"bad_words entry {word[:40]!r} has no tokens in this vocabulary", "bad_words"
            )
        sequences.update(found)
    return [list(s) for s in sequences]


def spellings(text: bytes, tokenizer: TokenizerLike, limit: int = MAX_SPELLINGS) -> list[tuple[int, ...]]:
    """At most ``limit`` token sequences whose bytes are exactly ``text``, those of fewest tokens first."""
    by_bytes, longest = _vocabulary(tokenizer)
    # best[i]: the spellings of text[i:], shortest first.  A sequence among the ``limit`` shortest of a text
    # has a rest among the ``limit`` shortest of the rest, so cutting the lists loses nothing.
    best: list[list[tuple[int, ...]]] = [[] for _ in range(len(text))] + [[()]]
    for start in range(len(text) - 1, -1, -1):
        found = [
            (token, *rest)
            for end in range(start + 1, min(len(text), start + longest) + 1)
            if best[end]
            for token in by_bytes.get(text[start:end], ())
            for rest in best[end]
        ]
        best[start] = sorted(found, key=lambda s: (len(s), s))[:limit]
    return best[0]


@lru_cache(maxsize=2)
def _vocabulary(tokenizer: TokenizerLike) -> tuple[dict[bytes, tuple[int, ...]], int]:
    """ids by their bytes (special tokens have none), and the length of the longest bytes looked up."""
    by_bytes: dict[bytes, tuple[int, ...]] = {}
    for i in range(tokenizer.vocab_size):
        data = tokenizer.token_bytes(i)
        if 0 < len(data) <= MAX_SPELLED_BYTES:
            by_bytes[data] = (*by_bytes[data], i) if data in by_bytes else (i,)
    return by_bytes, max(map(len, by_bytes), default=0)
