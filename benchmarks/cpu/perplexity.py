"""Perplexity of ``text.txt`` as the engine runs, beside float32: what fast number types cost in fidelity."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cpu.quantised import engine_option
from benchmarks.cpu.session import Session, greedy

from inferx.outputs import RequestOutput

TEXT = Path(__file__).with_name("text.txt")
WINDOW = 512  # tokens that see each other
# Largest relative difference to float32 activations and cache.
MOST_DIFFERENCE = 0.005


def reference_options() -> dict[str, str]:
    """Of an engine that computes in float32 throughout (weights as the file stores them)."""
    options = {"kv_cache_dtype": "float32"}
    if engine_option("activations"):
        options["activations"] = "float32"
    return options


def windows(tokens: Sequence[int], size: int) -> list[list[int]]:
    """Consecutive pieces of ``size`` tokens; a rest of one token, of which nothing is predicted, is left
    out."""
    if size < 2:
        raise ValueError(f"a window needs at least 2 tokens, got {size}")
    pieces = [list(tokens[start : start + size]) for start in range(0, len(tokens), size)]
    return [piece for piece in pieces if len(piece) > 1]


def perplexity(logprobs: Sequence[float]) -> float:
    """exp of the mean negative log-probability (natural log)."""
    if not logprobs:
        raise ValueError("perplexity needs at least one log-probability")
    return math.exp(-math.fsum(logprobs) / len(logprobs))


def run(order: dict[str, Any]) -> dict[str, Any]:
    """The perplexity under the order's options, and the log-probabilities it comes from."""
    session = Session(order)
    session.warm_up()
    engine = session.engine
    text = TEXT.read_text(encoding="utf-8")
    tokens = engine.tokenizer.encode(text)
    pieces = windows(tokens, order.get("window", WINDOW))
    for number, piece in enumerate(pieces):
        engine.add_request(f"window {number}", piece, greedy(1, prompt_logprobs=0))
    found: dict[str, list[float]] = {}
    while engine.has_work:
        for request_id, output in engine.step():
            if not isinstance(output, RequestOutput):
                raise output
            if output.prompt_logprobs is not None:
                entries = output.prompt_logprobs[1:]
                found[request_id] = [e.logprobs[0] for e in entries if e is not None]
    logprobs = [value for number in range(len(pieces)) for value in found[f"window {number}"]]
    if len(logprobs) != sum(len(piece) - 1 for piece in pieces):
        raise RuntimeError("some tokens of the text got no log-probability")
    return {
        "perplexity": perplexity(logprobs),
        "tokens": len(logprobs),
        "window": order.get("window", WINDOW),
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "options": order.get("options", {}),
    } | {"quantised": session.record()["quantised"]}
