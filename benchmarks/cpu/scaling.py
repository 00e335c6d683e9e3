"""A decode step's time against the number of streams and their context: it should grow without a cliff.

Long contexts are not computed: while prompts are taken in, the forward pass is left out and the KV cache
holds random numbers, each block its own, so that a step reads as much memory as with real ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from benchmarks.cpu.session import Session, greedy
from benchmarks.cpu.workloads import different_prompts

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8192)
TOKENS = 131_072  # in the KV cache, at most
WARM_STEPS, LEAST_STEPS, MOST_STEPS = 2, 5, 24
SECONDS = 0.5  # of measured steps a cell, when that is more than LEAST_STEPS
# A cliff: streams (or tokens) that are added cost this many times what the costlier of those before did.
CLIFF = 1.5


@dataclass(frozen=True)
class Cell:
    """seconds: median of a step.  spread: half the interquartile range, relative."""

    batch: int
    context: int
    seconds: float
    spread: float


@dataclass(frozen=True)
class Segment:
    """Between two neighbouring measurements of one line.

    marginal: seconds per stream (or token) added.  ratio: to the marginal before (None for the first).
    excess: to the larger of the marginal before and the mean cost so far: a step's fixed cost may hide
    behind memory first, which is no cliff; above ``CLIFF``, beyond the noise, it is one.
    """

    low: int
    high: int
    marginal: float
    ratio: float | None
    excess: float
    cliff: bool


def grid(batches: Sequence[int], contexts: Sequence[int], tokens: int) -> list[tuple[int, int]]:
    """(batch, context) with at most ``tokens`` in the cache."""
    return [(b, c) for b in batches for c in contexts if b * c <= tokens]


def segments(points: Sequence[tuple[int, float, float]], cliff: float = CLIFF) -> list[Segment]:
    """points: (streams or tokens, seconds, relative spread) of one line, in order."""
    found: list[Segment] = []
    for (low, before, noise0), (high, after, noise1) in pairwise(points):
        marginal = (after - before) / (high - low)
        previous = found[-1].marginal if found else None
        expected = max(before / low, previous or 0.0)
        ratio = None if previous is None or previous <= 0 else marginal / previous
        error = (before * noise0 + after * noise1) / (high - low)
        is_cliff = marginal - error > cliff * expected
        found.append(Segment(low, high, marginal, ratio, marginal / expected, is_cliff))
    return found


def lines(cells: Sequence[Cell]) -> Iterator[tuple[str, int, list[tuple[int, float, float]]]]:
    """("batch", context, points against the number of streams) and ("context", streams, points)."""
    for context in sorted({c.context for c in cells}):
        points = sorted((c.batch, c.seconds, c.spread) for c in cells if c.context == context)
        yield "batch", context, points
    for batch in sorted({c.batch for c in cells}):
        points = sorted((c.context, c.seconds, c.spread) for c in cells if c.batch == batch)
        yield "context", batch, points


def cliffs(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Every segment of every line, with where it lies."""
    return [
        {"along": along, "at": at, **vars(segment)}
        for along, at, points in lines(cells)
        for segment in segments(points)
    ]


def run(order: dict[str, Any]) -> dict[str, Any]:
    """All cells of the grid that the order gives."""
    cells = grid(order["batches"], order["contexts"], order["tokens"])
    if not cells:
        raise ValueError("no cell of the grid has as few tokens as the limit")
    streams = max(batch for batch, _ in cells)
    # Each stream needs a block more than its tokens, for those that it generates.
    room = max(b * (c + 2 * 16 + MOST_STEPS + WARM_STEPS) for b, c in cells)
    defaults = {
        "max_num_seqs": streams,
        "max_num_batched_tokens": max(2048, streams),
        "num_blocks": -(-room // 16) + streams,
        "enable_prefix_caching": False,
    }
    session = Session({**order, "options": {**defaults, **order.get("options", {})}})
    session.warm_up()
    fill_cache(session.engine.core.runner.kv)
    found = [_cell(session, batch, context) for batch, context in cells]
    return {"cells": [vars(cell) for cell in found]} | session.record()


def fill_cache(kv: Sequence[Sequence[torch.Tensor]]) -> None:
    """Random numbers, so that every page is there and is its own; torch's generator would take a minute."""
    for caches in kv:
        for cache in caches:
            some = torch.randn((min(64, cache.shape[0]), *cache.shape[1:])).to(cache.dtype)
            for start in range(0, cache.shape[0], len(some)):
                part = cache[start : start + len(some)]
                part.copy_(some[: len(part)])


@contextmanager
def without_forward(engine: Any) -> Iterator[None]:
    """Steps inside take no time in the model: its results are zeros and the KV cache is left as it is."""
    model = engine.core.model
    calls = 0

    def forward(input_ids: torch.Tensor, *_: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return torch.zeros(input_ids.shape[0], model.config.hidden_size)

    def forward_logits(*args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return torch.zeros(args[-1].shape[0], model.config.vocab_size)

    model.forward, model.forward_logits = forward, forward_logits
    try:
        yield
    finally:
        del model.forward, model.forward_logits
    if not calls:
        raise RuntimeError("the engine no longer calls the model's forward: the prompts were computed")


def _cell(session: Session, batch: int, context: int) -> Cell:
    engine = session.engine
    steps = WARM_STEPS + MOST_STEPS
    # The context is that of the middle of the measured steps, where the model allows it.
    longest = engine.core.info.max_model_len - 1
    prompt = max(1, min(context, longest) - steps)
    ids = [f"{batch} {context} {number}" for number in range(batch)]
    asked = different_prompts(batch, prompt, engine.core.info.vocab_size)
    for request_id, tokens in zip(ids, asked, strict=True):
        engine.add_request(request_id, tokens, greedy(steps + 2))
    with without_forward(engine):
        while any(seq.num_output_tokens == 0 for seq in engine.core.scheduler.running) or (
            len(engine.core.scheduler.running) < batch
        ):
            for _, output in engine.step():
                if isinstance(output, Exception):
                    raise output
    times: list[float] = []
    for number in range(steps):
        start = time.perf_counter()
        moved = sum(1 for _ in engine.step())
        elapsed = time.perf_counter() - start
        if moved < batch:
            break  # those that began first have ended
        if number >= WARM_STEPS:
            times.append(elapsed)
        if len(times) >= LEAST_STEPS and sum(times) > SECONDS:
            break
    for request_id in ids:
        engine.abort(request_id)
    if len(times) < 3:
        raise RuntimeError(f"{batch} streams of {context} tokens: only {len(times)} steps with all of them")
    times.sort()
    middle = statistics.median(times)
    quarter = (times[3 * len(times) // 4] - times[len(times) // 4]) / 2 / middle
    return Cell(batch, context, middle, quarter)
