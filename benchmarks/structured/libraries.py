"""The libraries behind one interface.  Imports nothing of inferx: it runs in their environments."""

from __future__ import annotations

import json
from typing import Any, Protocol

import numpy as np


class Matcher(Protocol):
    """One answer on its way."""

    def fill(self) -> None:
        """Compute the next mask."""
        ...

    def take(self, token: int) -> bool: ...

    def num_forced(self) -> int:
        """Tokens (or for want of them, bytes) that are forced now."""
        ...


class Library(Protocol):
    """Built for one vocabulary."""

    def compile(self, kind: str, grammar: Any) -> Any: ...

    def start(self, compiled: Any) -> Matcher: ...


class Llguidance:
    """As ``inferx.engine.structured`` uses it, with its default limits."""

    def __init__(self, vocabulary: dict[str, Any]) -> None:
        import llguidance

        self._lib = llguidance
        tokens = vocabulary["tokens"]
        single = {token: i for i, token in enumerate(tokens) if len(token) == 1}

        class Words:
            is_tokenizer_wrapper = True
            eos_token_id, bos_token_id = vocabulary["eos"][0], None
            special_token_ids = vocabulary["special"]

            def __call__(self, text: str) -> list[int]:
                return [single[bytes([b])] for b in text.encode() if bytes([b]) in single]

        words: Any = Words()
        words.tokens = tokens
        self._tokenizer = llguidance.LLTokenizer(words, n_vocab=len(tokens), eos_token=vocabulary["eos"])
        self._words = -(-len(tokens) // 32)

    def compile(self, kind: str, grammar: Any) -> Any:
        if kind == "json":
            text = self._lib.LLMatcher.grammar_from_json_schema(_text(grammar))
        else:
            text = self._lib.grammar_from(kind, json.dumps(grammar) if kind == "choice" else grammar)
        matcher = self._lib.LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def start(self, compiled: Any) -> Matcher:
        return _LlguidanceMatcher(compiled.deep_copy(), self._words)


class _LlguidanceMatcher:
    def __init__(self, native: Any, words: int) -> None:
        self._native = native
        self._mask = np.zeros(words, np.int32)

    def fill(self) -> None:
        self._native.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if self._native.is_error():
            raise ValueError(self._native.get_error())

    def take(self, token: int) -> bool:
        return bool(self._native.consume_token(token))

    def num_forced(self) -> int:
        return len(self._native.compute_ff_bytes())


class Xgrammar:
    """With one compiler thread and its default cache."""

    def __init__(self, vocabulary: dict[str, Any]) -> None:
        import torch
        import xgrammar

        self._lib = xgrammar
        info = xgrammar.TokenizerInfo(
            [t.replace(b"\xff", b"") if i in set(vocabulary["special"]) else t
             for i, t in enumerate(vocabulary["tokens"])],
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=len(vocabulary["tokens"]),
            stop_token_ids=vocabulary["eos"],
        )  # fmt: skip
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._mask = torch.zeros(1, -(-len(vocabulary["tokens"]) // 32), dtype=torch.int32)

    def compile(self, kind: str, grammar: Any) -> Any:
        if kind == "json":
            return self._compiler.compile_json_schema(_text(grammar))
        if kind == "regex":
            return self._compiler.compile_regex(grammar)
        if kind == "choice":
            grammar = "root ::= " + " | ".join(map(json.dumps, grammar))
        return self._compiler.compile_grammar(grammar)

    def start(self, compiled: Any) -> Matcher:
        return _XgrammarMatcher(self._lib.GrammarMatcher(compiled), self._mask)


class _XgrammarMatcher:
    def __init__(self, native: Any, mask: Any) -> None:
        self._native = native
        self._mask = mask

    def fill(self) -> None:
        self._native.fill_next_token_bitmask(self._mask)

    def take(self, token: int) -> bool:
        return bool(self._native.accept_token(token))

    def num_forced(self) -> int:
        return len(self._native.find_jump_forward_string().encode())


def _text(grammar: Any) -> str:
    return grammar if isinstance(grammar, str) else json.dumps(grammar)


LIBRARIES = {"llguidance": Llguidance, "xgrammar": Xgrammar}
