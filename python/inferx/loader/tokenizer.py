"""Text to token ids and back, for both tokenizer families, plus chat prompts.

Wraps a ``tokenizers`` tokenizer.  All methods may be called from several threads at once.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as RawTokenizer

from inferx.errors import InvalidRequestError, LoadError
from inferx.loader.chat_guard import KNOWN_MARKS, Cover, Markers, private_characters, shield
from inferx.loader.chat_template import ChatTemplate, append_to_content, normalise_messages, plain
from inferx.loader.checkpoint import Checkpoint

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"
# A start-of-text that no vocabulary has; see Tokenizer._encode_piece.
_SENTINEL = "\U0010fffd\U0010fffc\U0010fffd"
# Reserved in chat templates: what the caller may not set through keyword arguments.
_RESERVED = ("messages", "range")
_MAX_EXTRA_IDS = 4096
# Characters from which a text is worth the detour of a batch; see _encode.
_LONG_TEXT = 4096


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    """The checkpoint's tokenizer with its chat template.  LoadError when it is missing or damaged."""
    tokenizer = Tokenizer(
        checkpoint.tokenizer_json(),
        bos_token_id=checkpoint.config.bos_token_id,
        eos_token_ids=checkpoint.config.eos_token_ids,
        chat_template=checkpoint.chat_template,
        special_tokens=checkpoint.special_tokens,
        source=str(checkpoint.path),
    )
    # A few ids may lie beyond the table (Gemma 3 text models keep an image token); one huge id is damage,
    # and whoever walks over all ids would walk for ever.
    if tokenizer.vocab_size > checkpoint.config.vocab_size + _MAX_EXTRA_IDS:
        raise LoadError(
            f"{checkpoint.path}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, the model has "
            f"{checkpoint.config.vocab_size}"
        )
    return tokenizer


class Tokenizer:
    """vocab_size: largest id + 1 (the model's embedding table may be larger)."""

    def __init__(
        self,
        description: str,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
        chat_template: str | None = None,
        special_tokens: dict[str, str] | None = None,
        source: str = "tokenizer",
    ) -> None:
        """description: a ``tokenizers`` JSON.  special_tokens: bos_token, eos_token, ... as templates see
        them; missing ones are looked up by id."""
        try:
            self._raw = RawTokenizer.from_str(description)
            # The decoder alone; parsing the whole description again would cost as much as building it.
            decoder = json.loads(self._raw.decoder.__getstate__()) if self._raw.decoder is not None else None
        except Exception as error:  # tokenizers raises bare Exception
            raise LoadError(f"{source}: the tokenizer cannot be built: {error}") from error
        self._raw.no_truncation()
        self._raw.no_padding()
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(eos_token_ids)
        self._added = self._raw.get_added_tokens_decoder()
        self._special = frozenset(index for index, token in self._added.items() if token.special)
        self.vocab_size = _vocab_size(self._raw)
        self._token_bytes, self._added_bytes = _bytes_functions(decoder)
        self._lock = threading.Lock()
        self._unmarked: RawTokenizer | None = None
        self._special_tokens = dict(special_tokens or {})
        for name, index in (("bos_token", bos_token_id), ("eos_token", next(iter(self.eos_token_ids), None))):
            if name not in self._special_tokens and index is not None:
                self._special_tokens[name] = self.id_to_token(index)
        self._template: ChatTemplate | None = None
        self._template_source = chat_template

    @cached_property
    def _special_markers(self) -> Markers:
        return Markers(token.content for token in self._added.values() if token.special)

    @cached_property
    def _all_markers(self) -> Markers:
        """Special tokens, and others that steer a conversation; added words and white space are just text."""
        template = self._template_source or ""
        marks = (
            token.content
            for token in self._added.values()
            if token.content.strip() and (token.content in KNOWN_MARKS or token.content in template)
        )
        return Markers([*self._special_markers.texts, *marks])

    # ---- ids

    @property
    def has_chat_template(self) -> bool:
        return self._template_source is not None

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def id_to_token(self, token_id: int) -> str:
        """The token as the vocabulary spells it; "" for ids without a token."""
        return self._raw.id_to_token(token_id) or "" if 0 <= token_id < 1 << 31 else ""

    def token_to_id(self, token: str) -> int | None:
        return self._raw.token_to_id(token)

    def token_bytes(self, token_id: int) -> bytes:
        """Exactly the bytes the token adds to a text; b"" for special tokens and ids without a token."""
        added = self._added.get(token_id)
        if added is None:
            return self._token_bytes(self.id_to_token(token_id))
        return b"" if added.special else self._added_bytes(added.content)

    # ---- text

    def encode(self, text: str, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """add_special_tokens: as the tokenizer's post-processor says (BOS).  parse_special: whether
        special-token text inside ``text`` becomes the control token; False encodes it as ordinary
        sub-words."""
        _check_text(text)
        if parse_special or not self._all_markers.texts:
            return _encode(self._raw, text, add_special_tokens).ids
        ids = self._encode_plain(text, at_start=True)
        if not add_special_tokens:
            return ids
        # BOS and EOS are put around whatever the text became.
        before, after = self._around
        return [*before, *ids, *after]

    def encode_inside(self, text: str) -> list[int]:
        """Ids of ordinary text that stands somewhere inside a longer one: no marker means anything, and its
        first characters are like any others."""
        _check_text(text)
        return self._encode_plain(text, at_start=False)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Ids without a token add nothing; bytes that are no UTF-8 become U+FFFD."""
        ids = [index for index in token_ids if 0 <= index < self.vocab_size]
        return self._raw.decode(ids, skip_special_tokens=skip_special_tokens)

    # ---- chat

    @property
    def chat_template(self) -> ChatTemplate:
        """InvalidRequestError when the model has none or it does not compile."""
        if self._template_source is None:
            raise InvalidRequestError(
                "messages: this model has no chat template; use the completions API", "messages"
            )
        if self._template is None:
            self._template = ChatTemplate(self._template_source, **self._template_tokens())
        return self._template

    def _template_tokens(self) -> dict[str, str]:
        return {name: self._special_tokens.get(name, "") for name in ("bos_token", "eos_token")}

    def _choose_template(self, source: str | None) -> ChatTemplate:
        return self.chat_template if source is None else ChatTemplate(source, **self._template_tokens())

    def apply_chat_template(
        self,
        messages: Any,
        add_generation_prompt: bool = True,
        tools: Any = None,
        *,
        chat_template: str | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt text of a conversation: OpenAI-style messages, rendered in a sandbox.

        kwargs are variables of the template (``enable_thinking`` ...).  InvalidRequestError for malformed
        messages and for whatever the template refuses.
        """
        template = self._choose_template(chat_template)
        variables = _variables(tools, add_generation_prompt, kwargs)
        return template.render(normalise_messages(messages, template.takes_parts()), **variables)

    def encode_chat(
        self,
        messages: Any,
        add_generation_prompt: bool = True,
        tools: Any = None,
        *,
        chat_template: str | None = None,
        parse_special_in_content: bool = False,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation; the template writes BOS itself where the model wants one.

        Marker text inside messages, tools and kwargs comes out as ordinary sub-words (see ``chat_guard``), so
        control tokens are those of the template alone; without marker text the ids equal
        ``encode(apply_chat_template(...), add_special_tokens=False)``.  parse_special_in_content=True
        encodes the rendered text as it is, for callers who write markers on purpose.
        continue_final_message: the prompt ends with the last message's content, to be continued.
        """
        template = self._choose_template(chat_template)
        conversation = normalise_messages(messages, template.takes_parts())
        variables = _variables(tools, add_generation_prompt, kwargs)
        cover = Cover(private_characters([conversation, variables, template.source]))
        if not parse_special_in_content:
            conversation = [
                shield(m, self._special_markers if m["role"] == "assistant" else self._all_markers, cover)
                for m in conversation
            ]
            variables = {name: shield(value, self._all_markers, cover) for name, value in variables.items()}
        end = cover.stand_in("") if continue_final_message else ""
        if end:
            append_to_content(conversation[-1], end)
        text = template.render(conversation, **variables)
        if end:
            text, found, _ = text.rpartition(end)
            if not found:
                raise InvalidRequestError(
                    "continue_final_message: the chat template does not show the last message's content",
                    "continue_final_message",
                )
        if parse_special_in_content:
            return self.encode(text, add_special_tokens=False)
        return self._encode_covered(text, cover)

    def _encode_covered(self, text: str, cover: Cover) -> list[int]:
        """Encodes ``text`` so that what ``cover`` stands for never becomes a control token.

        The stand-ins are inert characters, so the tokenizer itself tells where the template's control
        tokens are. Between those, pieces that hold a stand-in are restored and encoded without markers; all
        others keep the ids they got.
        """
        _check_text(text)
        encoding = _encode(self._raw, text, False)
        if not cover.within(text):
            return encoding.ids
        ids: list[int] = []
        piece_start, piece_ids = 0, list[int]()
        for index, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if index not in self._marker_ids:
                piece_ids.append(index)
                continue
            ids += self._piece(text, piece_start, start, piece_ids, cover)
            ids.append(index)
            piece_start, piece_ids = stop, []
        return ids + self._piece(text, piece_start, len(text), piece_ids, cover)

    def _piece(self, text: str, start: int, stop: int, ids: list[int], cover: Cover) -> list[int]:
        piece = text[start:stop]
        return self._encode_plain(cover.restore(piece), start == 0) if cover.within(piece) else ids

    def _encode_plain(self, text: str, at_start: bool) -> list[int]:
        """``text`` as ordinary sub-words: no marker's id comes out, whatever the text holds.

        Away from the start of the prompt, a sentinel stands for the control token before it, since some
        tokenizers treat the first characters of a text specially.
        """
        unmarked = self._without_markers()

        def encode(piece: str, start: bool) -> list[int]:
            ids = _encode(unmarked, piece if start else _SENTINEL + piece, False).ids
            return ids if start else ids[1:]

        ids = encode(text, at_start)
        if self._marker_ids.isdisjoint(ids):
            return ids
        # Some vocabularies have merges that lead to a marker: cut each marker after its first character.
        pieces = self._all_markers.cut(text)
        ids = [i for n, piece in enumerate(pieces) for i in encode(piece, at_start and n == 0)]
        if not self._marker_ids.isdisjoint(ids):
            raise InvalidRequestError(
                "text: a control token in it cannot be encoded as ordinary text", "messages"
            )
        return ids

    @cached_property
    def _marker_ids(self) -> frozenset[int]:
        return frozenset(i for i, token in self._added.items() if token.content in self._all_markers.texts)

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """What the post-processor puts before and after a text."""
        word = self._raw.encode("a", add_special_tokens=False).ids
        whole = self._raw.encode("a").ids
        start = next((i for i in range(len(whole)) if whole[i : i + len(word)] == word), len(whole))
        return whole[:start], whole[start + len(word) :]

    def _without_markers(self) -> RawTokenizer:
        """The same tokenizer to which no marker means anything; built when first needed."""
        with self._lock:
            if self._unmarked is None:
                self._unmarked = self._sharing_model() or self._rebuilt()
                self._unmarked.add_special_tokens([_SENTINEL])
            return self._unmarked

    def _sharing_model(self) -> RawTokenizer | None:
        """Built around the same model, which costs nothing; None where added tokens would get other ids."""
        unmarked = RawTokenizer(self._raw.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(self._raw, part) is not None:
                setattr(unmarked, part, getattr(self._raw, part))
        kept = {i: t for i, t in sorted(self._added.items()) if t.content not in self._all_markers.texts}
        unmarked.add_tokens(list(kept.values()))
        same = all(unmarked.token_to_id(token.content) == index for index, token in kept.items())
        return unmarked if same else None

    def _rebuilt(self) -> RawTokenizer:
        parsed = json.loads(self._raw.to_str())
        parsed["added_tokens"] = [
            t for t in parsed["added_tokens"] if t["content"] not in self._all_markers.texts
        ]
        unmarked = RawTokenizer.from_str(json.dumps(parsed, ensure_ascii=False))
        unmarked.no_truncation()
        unmarked.no_padding()
        return unmarked


def _vocab_size(raw: RawTokenizer) -> int:
    """Largest id + 1."""
    count: int = raw.get_vocab_size(with_added_tokens=True)
    # As many ids as tokens, without a gap: no need to copy the whole vocabulary.
    if None not in map(raw.id_to_token, range(count)):
        return count
    largest: int = max(raw.get_vocab(with_added_tokens=True).values(), default=-1)
    return largest + 1


def _encode(raw: RawTokenizer, text: str, add_special_tokens: bool) -> Any:
    """The ``tokenizers`` encoding of a text."""
    if len(text) < _LONG_TEXT:
        return raw.encode(text, add_special_tokens=add_special_tokens)
    # ``encode`` keeps the interpreter's lock, and a megabyte takes most of a second: a batch of one does not.
    return raw.encode_batch([text], add_special_tokens=add_special_tokens)[0]


def _variables(tools: Any, add_generation_prompt: bool, kwargs: dict[str, Any]) -> dict[str, Any]:
    for name in _RESERVED:
        if name in kwargs:
            raise InvalidRequestError(
                f"chat template variable {name!r} cannot be set", "chat_template_kwargs"
            )
    variables = plain({"tools": tools, **kwargs})
    return {**variables, "add_generation_prompt": bool(add_generation_prompt)}


def _check_text(text: Any) -> None:
    if not isinstance(text, str):
        raise InvalidRequestError(f"text: expected a string, got {type(text).__name__}", "prompt")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"text: holds a lone surrogate at position {error.start}", "prompt"
        ) from None


# ---- bytes of a token


def _unicode_to_bytes() -> dict[str, int]:
    """The byte-level alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in
    order (Radford et al., GPT-2)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}


class _Alphabet(dict[int, str]):
    """For str.translate: what is not in the alphabet becomes a character that is no byte."""

    def __missing__(self, character: int) -> str:
        return "\uffff"


def _steps(part: Any) -> list[dict[str, Any]]:
    """A decoder description as a flat list."""
    if not isinstance(part, dict):
        return []
    inner = part.get("decoders")
    return [step for item in inner for step in _steps(item)] if inner else [part]


def _bytes_functions(decoder: Any) -> tuple[Callable[[str], bytes], Callable[[str], bytes]]:
    """(token text -> bytes, added token text -> bytes), by the kind of decoder the tokenizer has."""
    kinds = {step.get("type") for step in _steps(decoder)}
    if "ByteLevel" in kinds:
        alphabet = _Alphabet({ord(character): chr(byte) for character, byte in _unicode_to_bytes().items()})

        def byte_level(token: str) -> bytes:
            try:
                return token.translate(alphabet).encode("latin-1")
            except UnicodeEncodeError:
                return token.encode()

        return byte_level, str.encode
    fallback = "ByteFallback" in kinds

    def spaced(token: str) -> bytes:
        return token.replace(_SPACE, " ").encode()

    def piece(token: str) -> bytes:
        match = _BYTE_TOKEN.fullmatch(token) if fallback else None
        return bytes([int(match.group(1), 16)]) if match else spaced(token)

    return piece, spaced
