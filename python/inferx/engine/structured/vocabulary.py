"""A model's tokens as the grammar library wants them, made from our own tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from llguidance import LLTokenizer

from inferx.engine.structured.native import make_tokenizer
from inferx.loader.tokenizer import Tokenizer


class Vocabulary:
    """The ids below the tokenizer's size; others have no text, so no grammar allows them."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Iterable[int], vocab_size: int) -> None:
        """eos_token_ids: what ends an answer.  vocab_size: width of the logits."""
        self._tokenizer = tokenizer
        self.num_ids = min(tokenizer.vocab_size, vocab_size)
        self.eos_token_ids = sorted({t for t in eos_token_ids if 0 <= t < self.num_ids})

    @cached_property
    def tokens(self) -> list[bytes]:
        """The bytes of every id.  Special tokens, and ids without one, are 0xFF (no byte of UTF-8) and a
        name."""
        tokenizer = self._tokenizer
        return [
            tokenizer.token_bytes(i) or b"\xff" + (tokenizer.id_to_token(i) or f"<unused {i}>").encode()
            for i in range(self.num_ids)
        ]

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """Special tokens by their text."""
        special = (i for i in range(self.num_ids) if self._tokenizer.is_special(i))
        return {self._tokenizer.id_to_token(i): i for i in special}

    @property
    def special(self) -> list[int]:
        """Ids that are no text."""
        return [i for i, token in enumerate(self.tokens) if token[0] == 0xFF and len(token) > 1]

    @property
    def end_ids(self) -> list[int]:
        """End tokens as the library sees them: it needs one, so a model without lends an id of no text."""
        return self.eos_token_ids or self.special[:1] or [self.num_ids - 1]

    @property
    def num_words(self) -> int:
        """Words of 32 bits in a mask."""
        return -(-self.num_ids // 32)

    @cached_property
    def native(self) -> LLTokenizer:
        return make_tokenizer(self.tokens, self.special, self.end_ids, self._tokenizer.encode_inside)
