"""Text from token ids, one at a time.

The pieces joined are exactly ``tokenizer.decode(all ids)``, no piece holds half a character, and the
work is linear in the number of tokens.  Two kinds of vocabulary are decoded from the tokens' bytes:

* byte-level BPE: the bytes of all tokens in a row, as UTF-8; each maximal invalid part is one U+FFFD.
* byte fallback (SentencePiece): tokens are text, except ``<0xE6>`` and the like.  A run of those is one
  unit: all of it is valid UTF-8, or every byte becomes U+FFFD.  So a run is held until it ends.

Which one a tokenizer is, and that the rule reproduces its ``decode``, is tried out once per tokenizer.
Should neither hold, ``decode`` itself is called on a short window of tokens.
"""

from __future__ import annotations

import codecs
import random
import re
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

# Its ``buffer`` holds the bytes of a character that has begun.
_Utf8Decoder: type[codecs.BufferedIncrementalDecoder] = codecs.getincrementaldecoder("utf-8")  # type: ignore[assignment]
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Tokens of context in front of a window, and how long a window may wait for its last character.
_CONTEXT = 5
_LONGEST_WAIT = 32


class TokenizerLike(Protocol):
    """The part of ``loader.tokenizer.Tokenizer`` that decoding needs."""

    @property
    def vocab_size(self) -> int: ...

    def decode(self, token_ids: list[int], /, skip_special_tokens: bool = True) -> str: ...

    def token_bytes(self, token_id: int, /) -> bytes: ...

    def id_to_token(self, token_id: int, /) -> str: ...

    def is_special(self, token_id: int, /) -> bool: ...


class TokenTexts:
    """What single tokens contribute to a text; shared by all requests of a tokenizer.

    ``kind`` is the rule found (see the module's docstring); ``strips_space``: decode drops one space at
    the very beginning of a text.
    """

    def __init__(self, tokenizer: TokenizerLike) -> None:
        self.tokenizer = tokenizer
        self.strips_space = False
        self._special: dict[int, bytes] = {}
        self._names: dict[int, tuple[str, bytes]] = {}
        self._byte_tokens: dict[int, int] = {}
        self._whole: dict[int, str | None] = {}
        sample = self._survey()
        self.kind: Literal["bytes", "byte_fallback", "window"] = (
            "byte_fallback" if self._byte_tokens else "bytes"
        )
        for strips in (False, True):
            self.strips_space = strips
            if self._agrees_with_decode(sample):
                return
        self.strips_space = False
        self.kind = "window"

    def skipped(self, token_id: int, skip_special_tokens: bool) -> bool:
        return skip_special_tokens and self.tokenizer.is_special(token_id)

    def data(self, token_id: int) -> bytes:
        """The bytes of a token that is not skipped; those of a special token are its name's."""
        if not self.tokenizer.is_special(token_id):
            return self.tokenizer.token_bytes(token_id)
        data = self._special.get(token_id)
        if data is None:
            data = self.tokenizer.decode([token_id], skip_special_tokens=False).encode("utf-8")
            self._special[token_id] = data
        return data

    def whole(self, token_id: int) -> str | None:
        """The text of a token that is no special one, if its bytes are whole characters; noted once seen."""
        try:
            return self._whole[token_id]
        except KeyError:
            pass
        text = None
        if not self.tokenizer.is_special(token_id):
            data = self.tokenizer.token_bytes(token_id)
            text = data.decode("utf-8") if _is_text(data) else None
        self._whole[token_id] = text
        return text

    def fallback_byte(self, token_id: int) -> int | None:
        """The byte of a ``<0xE6>`` token, None for all others."""
        return self._byte_tokens.get(token_id)

    def name(self, token_id: int) -> tuple[str, bytes]:
        """(text, bytes) of a token by itself, for log-probabilities: a special token's text is its name,
        it has no bytes; bytes that are no character show as U+FFFD in the text."""
        entry = self._names.get(token_id)
        if entry is None:
            if self.tokenizer.is_special(token_id):
                entry = self.tokenizer.id_to_token(token_id), b""
            else:
                data = self.tokenizer.token_bytes(token_id)
                entry = data.decode("utf-8", "replace"), data
            self._names[token_id] = entry
        return entry

    def _survey(self) -> list[int]:
        """Note the byte tokens; return ids of every sort to try the rule on."""
        sorts: dict[str, list[int]] = {"special": [], "partial": [], "space": [], "empty": [], "other": []}
        tokenizer = self.tokenizer
        is_special, token_bytes = tokenizer.is_special, tokenizer.token_bytes
        for i in range(tokenizer.vocab_size):
            if is_special(i):
                sorts["special"].append(i)
                continue
            data = token_bytes(i)
            if len(data) == 1 and _BYTE_TOKEN.fullmatch(tokenizer.id_to_token(i)):
                self._byte_tokens[i] = data[0]
            if not data:
                sorts["empty"].append(i)
            elif not data.isascii() and not _is_text(data):
                sorts["partial"].append(i)
            else:
                sorts["space" if data[:1] == b" " else "other"].append(i)
        rng = random.Random(0)
        return [i for ids in sorts.values() for i in rng.sample(ids, min(48, len(ids)))]

    def _agrees_with_decode(self, sample: Sequence[int]) -> bool:
        rng = random.Random(1)
        texts = [[i] for i in sample]
        if sample:
            texts += [rng.choices(sample, k=rng.randint(2, 24)) for _ in range(96)]
        for ids in texts:
            for skip in (True, False):
                detokenizer = Detokenizer(self, skip_special_tokens=skip)
                text = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
                if text != self.tokenizer.decode(ids, skip_special_tokens=skip):
                    return False
        return True


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


class Detokenizer:
    """One sample's text.  ``push`` every token, then ``flush`` once.

    ``prompt_token_ids``: what the text continues.  Where decode drops a space at the beginning of a text
    (SentencePiece), it is kept after a prompt: it separates the answer from the prompt.  Bytes of an
    unfinished character at the end of the prompt do not join with those of the answer.
    """

    def __init__(
        self,
        texts: TokenTexts,
        *,
        skip_special_tokens: bool = True,
        prompt_token_ids: Iterable[int] = (),
        shown_special_token_ids: Iterable[int] = (),
    ) -> None:
        """shown_special_token_ids: special tokens that are not skipped."""
        self._texts = texts
        self._skip = skip_special_tokens
        self._shown = frozenset(shown_special_token_ids) if skip_special_tokens else frozenset()
        self._utf8 = _Utf8Decoder("replace")
        self._run = bytearray()
        self._window: list[int] = []
        self._read = 0  # tokens of the window whose text is out
        self._strip = texts.strips_space and all(texts.skipped(t, self._skip) for t in prompt_token_ids)
        if texts.kind == "window":
            prompt = [t for t in prompt_token_ids if not texts.skipped(t, self._skip)]
            self._window = prompt[-_CONTEXT:]
            self._read = len(self._window)

    def push(self, token_id: int) -> str:
        """The text that is certain with this token; may be empty."""
        texts = self._texts
        if texts.kind == "bytes" and not self._strip and not self._utf8.buffer:
            text = texts.whole(token_id)
            if text is not None:
                return text
        if texts.skipped(token_id, self._skip):
            return self._push_shown(token_id) if token_id in self._shown else ""
        if texts.kind == "bytes":
            return self._begin(self._utf8.decode(texts.data(token_id)))
        if texts.kind == "window":
            return self._push_window(token_id)
        byte = texts.fallback_byte(token_id)
        if byte is not None:
            self._run.append(byte)
            return ""
        return self._begin(self._end_run() + texts.data(token_id).decode("utf-8", "replace"))

    def _push_shown(self, token_id: int) -> str:
        """A special token's name.  Bytes of a character before it will not be completed."""
        return self.flush() + self._begin(self._texts.data(token_id).decode("utf-8", "replace"))

    def flush(self) -> str:
        """What was held back: nothing will follow that could complete it."""
        if self._texts.kind == "window":
            text = self._window_text(final=True)
            self._read = len(self._window)
            return text
        return self._begin(self._utf8.decode(b"", final=True) + self._end_run())

    def _begin(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text

    def _end_run(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode("utf-8")
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _push_window(self, token_id: int) -> str:
        self._window.append(token_id)
        if self._texts.fallback_byte(token_id) is not None:
            return ""
        text = self._window_text(final=len(self._window) - self._read >= _LONGEST_WAIT)
        if text:
            del self._window[: max(0, self._read - _CONTEXT)]
            self._read = len(self._window)
        return text

    def _window_text(self, final: bool) -> str:
        """The text behind the first ``_read`` tokens, "" while it may end inside a character."""
        decode = self._texts.tokenizer.decode
        before = decode(self._window[: self._read], skip_special_tokens=self._skip)
        text = decode(self._window, skip_special_tokens=self._skip)
        return text[len(before) :] if final or not text.endswith("\ufffd") else ""
