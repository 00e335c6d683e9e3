"""llguidance, the library that turns grammars into token masks, as this engine uses it.

Imports nothing of inferx and no torch: the front end runs this file as a script, in a child process that
tries a grammar before the engine sees it (``validator``).  That child starts in a fraction of a second and
needs little memory.

The child reads frames from standard input and answers each on standard output; a frame is a length (4
bytes, little-endian) and as many bytes of msgpack.  First {"tokens", "special", "eos"}, answered by an empty
text; then one ``Source`` after the other, answered by an error text, which is empty when the grammar is fine.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

# Address space of the child, and the stack its compiler gets: less than what the engine has, so that what
# passes here passes there.
CHILD_MEMORY_BYTES = 3 << 30
CHILD_STACK_BYTES = 2 << 20
# White space between two tokens of JSON: a space or two, or a new line with its indentation.  Where more is
# allowed, small models write nothing else until the limit.
JSON_SPACE = r"[ \t]{1,2}|\r?\n[ \t]{0,32}"
MAX_ERROR_CHARS = 300
# Masks that the child tries after the first.
TRIAL_STEPS = 12

# Of one grammar.  Fuel is what compiling and each mask may cost; as defaulted, some 20 ms each.
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,  # up to 2 kB each
    max_grammar_size=500_000,
    verbose_errors=False,
)


class Source(msgspec.Struct, array_like=True, frozen=True):
    """A constraint as text.  kind: json (a schema), regex, lark or ebnf (Lark or GBNF)."""

    kind: str
    text: str
    compact: bool = False  # JSON without white space


class _Words:
    """What ``LLTokenizer`` asks of a tokenizer."""

    is_tokenizer_wrapper = True

    def __init__(
        self,
        tokens: Sequence[bytes],
        special: Sequence[int],
        eos: Sequence[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self.tokens = list(tokens)
        self.special_token_ids = list(special)
        self.eos_token_id = eos[0]
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def make_tokenizer(
    tokens: Sequence[bytes], special: Sequence[int], eos: Sequence[int], encode: Callable[[str], list[int]]
) -> LLTokenizer:
    """tokens: the bytes of every id; of special ones, 0xFF and their name.  encode: of text that stands
    somewhere inside a longer one; used to find the tokens of what a grammar forces."""
    words: Any = _Words(tokens, special, eos, encode)
    return LLTokenizer(words, n_vocab=len(tokens), eos_token=list(eos))


def compile_source(tokenizer: LLTokenizer, source: Source) -> LLMatcher:
    """The matcher of a grammar; ValueError says what is wrong with it."""
    try:
        matcher = LLMatcher(tokenizer, _grammar(source), log_level=0, limits=LIMITS)
    except Exception as error:
        raise ValueError(first_lines(str(error))) from None
    if matcher.is_error():
        raise ValueError(first_lines(matcher.get_error()))
    return matcher


def check_start(matcher: LLMatcher, steps: int = 0) -> None:
    """ValueError when nothing can match, or when the first masks already cost too much.

    steps: tokens to go on by, the lowest that may come.  Some grammars grow into their limits at once.
    """
    for step in range(steps + 1):
        if steps:
            matcher.compute_ff_tokens()  # what the engine asks first
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            fault = first_lines(matcher.get_error())
            raise ValueError("no text can match it" if fault.startswith("NoExtension") else fault)
        token = _lowest(mask)
        if step == steps or token is None or not matcher.consume_token(token) or matcher.is_stopped():
            return


def _lowest(mask: bytes) -> int | None:
    """The lowest id whose bit is set."""
    for at, byte in enumerate(mask):
        if byte:
            return 8 * at + (byte & -byte).bit_length() - 1
    return None


def schema_options(compact: bool) -> dict[str, Any]:
    """What the library is told beside a JSON schema.  compact: no white space."""
    # Of a union whose branches overlap, the library can only hold that some branch matches.
    options: dict[str, Any] = {"whitespace_flexible": not compact, "coerce_one_of": True}
    if not compact:
        options["whitespace_pattern"] = JSON_SPACE
    return options


def _grammar(source: Source) -> str:
    if source.kind == "json":
        options: Any = schema_options(source.compact)
        schema = json.loads(source.text)
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema) if isinstance(schema, dict) else _boolean(schema), overrides=options
        )
    if source.kind == "regex":
        return LLMatcher.grammar_from_regex(source.text)
    gbnf = source.kind == "ebnf" and "::=" in source.text
    text = gbnf_to_lark(source.text) if gbnf else source.text
    return LLMatcher.grammar_from_lark(text)


def _boolean(schema: object) -> str:
    """A schema that is true (anything) or false (nothing) as an object."""
    return "{}" if schema is True else '{"enum": []}'


def first_lines(message: str) -> str:
    """The library's message without the state it appends."""
    message = message.split("<state>")[0].split("<non-verbose")[0].strip() or "it cannot be compiled"
    return message if len(message) <= MAX_ERROR_CHARS else message[: MAX_ERROR_CHARS - 3] + "..."


# ---- the child


def _read(stream: BinaryIO) -> bytes | None:
    header = stream.read(4)
    if len(header) < 4:
        return None
    size = struct.unpack("<I", header)[0]
    data = stream.read(size)
    return data if len(data) == size else None


def _verdict(tokenizer: LLTokenizer, source: Source) -> str:
    try:
        check_start(compile_source(tokenizer, source), TRIAL_STEPS)
    except ValueError as error:
        return str(error)
    except MemoryError:
        return "it takes too much memory"
    except Exception as error:
        return first_lines(f"{type(error).__name__}: {error}")
    return ""


def _serve(inbox: BinaryIO, outbox: BinaryIO) -> None:
    vocabulary = msgspec.msgpack.decode(_read(inbox) or b"\x80")
    fallback = {token: i for i, token in enumerate(vocabulary["tokens"]) if len(token) == 1}

    def encode(text: str) -> list[int]:
        """Any tokens that spell it."""
        return [fallback[bytes([b])] for b in text.encode() if bytes([b]) in fallback]

    tokenizer = make_tokenizer(**vocabulary, encode=encode)
    _answer(outbox, "")
    while (frame := _read(inbox)) is not None:
        _answer(outbox, _verdict(tokenizer, msgspec.msgpack.decode(frame, type=Source)))


def _answer(outbox: BinaryIO, verdict: str) -> None:
    answer = msgspec.msgpack.encode(verdict)
    outbox.write(struct.pack("<I", len(answer)) + answer)
    outbox.flush()


def main() -> None:
    """Serve until standard input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (CHILD_MEMORY_BYTES, CHILD_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(CHILD_STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(sys.stdin.buffer, sys.stdout.buffer))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
