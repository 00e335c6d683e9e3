"""Log-probabilities in the shapes of the two endpoints, aligned with the text.

A token of a byte-level vocabulary may be part of a character.  Its *piece* is the text that becomes
complete with it, so pieces joined are the text; its *name* stands for the token by itself, with bytes
that are no text escaped.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from inferx.engine.protocol import TokenLogprobs
from inferx.server.engine_api import Tokenizer

# JSON has no -inf; vLLM's stand-in.
LOWEST_LOGPROB = -9999.0


@dataclass(frozen=True)
class AlignedToken:
    """One token with its piece of text and where that starts, in characters of the choice's text."""

    token_id: int
    piece: str
    offset: int
    logprobs: TokenLogprobs | None  # None for a prompt's first token
    partial: bool = False  # its bytes begin or continue a character that a later token completes


class TokenNames:
    """Text and bytes of single tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def bytes(self, token_id: int) -> bytes:
        return self.tokenizer.token_bytes(token_id)

    def name(self, token_id: int, prefix: str = "") -> str:
        """The token's text; ``prefix`` and escapes when its bytes are no text; control tokens as written."""
        data = self.bytes(token_id)
        if not data:
            return self.tokenizer.id_to_token(token_id)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return prefix + "".join(f"\\x{byte:02x}" for byte in data)


class TokenAligner:
    """Assigns pieces and offsets to the tokens of one choice, and holds tokens back until their text is out.

    The engine withholds text that may yet become a stop string while their tokens are already known;
    a token is released once its piece starts inside the released text, so that logprobs leak no more
    than the text does, and streamed parts join to the whole answer.
    """

    def __init__(
        self,
        names: TokenNames,
        *,
        start: int = 0,
        show_special_tokens: bool = False,
        shown: Iterable[int] = (),
    ) -> None:
        """shown: special tokens that are in the text without ``show_special_tokens``, too."""
        self.names = names
        self._shown = frozenset(shown)
        self.show_special_tokens = show_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held: list[AlignedToken] = []
        self._end = start  # characters up to the end of the last pushed token

    def push(self, token_ids: list[int], logprobs: list[TokenLogprobs | None]) -> None:
        for token_id, entry in zip(token_ids, logprobs, strict=True):
            data = self.names.bytes(token_id)
            piece = self._decoder.decode(data)
            if not data and (self.show_special_tokens or token_id in self._shown):
                piece += self.names.tokenizer.id_to_token(token_id)
            partial = bool(data) and not piece
            self._held.append(AlignedToken(token_id, piece, self._end, entry, partial))
            self._end += len(piece)

    def release(self, text_length: int, *, finished: bool = False, trim: bool = False) -> list[AlignedToken]:
        """Tokens whose text lies within the first ``text_length`` characters.

        finished: nothing will follow, so all that is held is released, or, with ``trim`` (a stop string
        ended the answer), what begins behind the text is dropped.
        """
        if finished and not trim and self._held:
            # Bytes that never became a character show as U+FFFD in the text, too.
            last = self._held[-1]
            self._held[-1] = replace(last, piece=last.piece + self._decoder.decode(b"", final=True))
        count = 0
        for token in self._held:
            ends = token.offset + len(token.piece)
            # A token without text of its own goes with the text before it.
            begun = token.offset < text_length or ends == token.offset == text_length
            if not (begun if trim else finished or ends <= text_length):
                break
            count += 1
        while count and self._held[count - 1].partial and (trim or not finished):
            count -= 1  # goes with the token that completes the character
        released = self._held[:count]
        self._held = [] if finished else self._held[count:]
        return released


def align_prompt(
    token_ids: list[int], logprobs: list[TokenLogprobs | None], text: str, names: TokenNames
) -> list[AlignedToken]:
    """The tokens of an echoed prompt.  Control tokens have a piece where the caller wrote them out, not
    where the tokenizer added them; a space that the tokenizer put before the text is no part of it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    aligned = []
    offset = 0
    for token_id, entry in zip(token_ids, logprobs, strict=True):
        data = names.bytes(token_id)
        piece = decoder.decode(data) if data else names.tokenizer.id_to_token(token_id)
        if not data and not text.startswith(piece, offset):
            piece = ""
        if offset == 0 and piece.startswith(" ") and not text.startswith(" "):
            piece = piece[1:]
        aligned.append(AlignedToken(token_id, piece, offset, entry))
        offset += len(piece)
    return aligned


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


def completion_logprobs(tokens: list[AlignedToken], names: TokenNames, num_top: int) -> dict[str, Any]:
    """The shape of ``/v1/completions``: parallel lists.  With 0 alternatives there is no map at all."""
    top: list[dict[str, float] | None] = []
    for token in tokens:
        top.append(None if token.logprobs is None else _by_text(token.logprobs, names, num_top))
    return {
        "tokens": [_piece_or_name(token, names) for token in tokens],
        "token_logprobs": [
            None if token.logprobs is None else finite(token.logprobs.logprobs[0]) for token in tokens
        ],
        "top_logprobs": top if num_top else None,
        "text_offset": [token.offset for token in tokens],
    }


def _piece_or_name(token: AlignedToken, names: TokenNames) -> str:
    # A control token has no text in the answer; its name says more than an empty string.
    return token.piece if names.bytes(token.token_id) else names.name(token.token_id)


def _by_text(entry: TokenLogprobs, names: TokenNames, num_top: int) -> dict[str, float]:
    """Best alternatives by their text; where two tokens read the same, the likelier one."""
    result: dict[str, float] = {}
    candidates = list(zip(entry.token_ids, entry.logprobs, strict=True))
    for token_id, logprob in [*candidates[1 : num_top + 1], candidates[0]]:
        result.setdefault(names.name(token_id, "bytes:"), finite(logprob))
    return result


def chat_logprobs(tokens: list[AlignedToken], names: TokenNames, num_top: int) -> dict[str, Any]:
    """The shape of ``/v1/chat/completions``: one object per token, exactly ``num_top`` alternatives each."""
    content = []
    for token in tokens:
        entry = token.logprobs
        if entry is None:
            continue
        top = zip(entry.token_ids[1 : num_top + 1], entry.logprobs[1 : num_top + 1], strict=True)
        item = _chat_entry(token.token_id, entry.logprobs[0], names)
        item["top_logprobs"] = [_chat_entry(token_id, logprob, names) for token_id, logprob in top]
        content.append(item)
    return {"content": content, "refusal": None}


def _chat_entry(token_id: int, logprob: float, names: TokenNames) -> dict[str, Any]:
    return {
        "token": names.name(token_id),
        "logprob": finite(logprob),
        "bytes": list(names.bytes(token_id)),
    }


def prompt_logprobs(entries: list[TokenLogprobs | None], names: TokenNames) -> list[dict[str, Any] | None]:
    """vLLM's shape: per prompt token a map from token id to logprob, rank and text; null for the first."""
    result: list[dict[str, Any] | None] = []
    for entry in entries:
        if entry is None:
            result.append(None)
            continue
        ranks = [entry.rank, *range(1, len(entry.token_ids))]
        by_id: dict[str, Any] = {}
        for token_id, logprob, rank in zip(entry.token_ids, entry.logprobs, ranks, strict=True):
            by_id.setdefault(
                str(token_id),
                {"logprob": finite(logprob), "rank": rank, "decoded_token": names.name(token_id)},
            )
        result.append(by_id)
    return result
