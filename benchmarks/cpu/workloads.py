"""The six workloads: exact token ids from a fixed seed, so that every engine computes the same.

W1  one stream, 128 in, 256 out             W4  one prompt of 2,000 tokens, one out
W2  16 streams, 128 in, 128 out             W5  32 requests, 32..512 in, 16..256 out
W3  64 streams, 64 in, 64 out               W6  16 requests, 1,024 shared and 32 own in, 32 out

Ids lie in [100, 49000): no special token of SmolLM2 (vocabulary 49,152), and valid in larger vocabularies.
All requests of a workload arrive together; greedy; end tokens do not end them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SEED = 20251129
FIRST_ID, END_ID = 100, 49_000
NAMES = ("W1", "W2", "W3", "W4", "W5", "W6")
SHARED_PREFIX = 1024  # tokens that all requests of W6 begin with


@dataclass(frozen=True)
class Request:
    """prompt: token ids.  new_tokens: how many to generate, exactly."""

    prompt: tuple[int, ...]
    new_tokens: int


Workload = tuple[Request, ...]


def make_workloads() -> dict[str, Workload]:
    """All six, by name.  One generator runs through them in order, so none can be made alone."""
    source = random.Random(SEED)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(source.randrange(FIRST_ID, END_ID) for _ in range(count))

    def equal(count: int, prompt: int, new_tokens: int) -> Workload:
        return tuple(Request(tokens(prompt), new_tokens) for _ in range(count))

    made = {
        "W1": equal(1, 128, 256),
        "W2": equal(16, 128, 128),
        "W3": equal(64, 64, 64),
        "W4": equal(1, 2000, 1),
    }
    mixed = []
    for _ in range(32):
        prompt = tokens(source.randint(32, 512))
        mixed.append(Request(prompt, source.randint(16, 256)))
    made["W5"] = tuple(mixed)
    prefix = tokens(SHARED_PREFIX)
    made["W6"] = tuple(Request(prefix + tokens(32), 32) for _ in range(16))
    return made


def warm_up_prompt(count: int = 128) -> list[int]:
    """Tokens for a run before the measured one; they share no prefix with any workload."""
    source = random.Random(SEED + 1)
    return [source.randrange(FIRST_ID, END_ID) for _ in range(count)]


def different_prompts(count: int, length: int, vocabulary: int) -> list[list[int]]:
    """For measurements besides the workloads; no two begin alike."""
    width = min(END_ID, vocabulary) - FIRST_ID
    return [[FIRST_ID + (7919 * i + 104_729 * j) % width for j in range(length)] for i in range(count)]


def prompt_tokens(requests: Iterable[Request]) -> int:
    return sum(len(r.prompt) for r in requests)


def output_tokens(requests: Iterable[Request]) -> int:
    return sum(r.new_tokens for r in requests)


def write_json(path: Path) -> None:
    """For drivers of other engines: {"W1": [{"p": [ids], "n": new tokens}, ...], ...}."""
    data = {
        name: [{"p": list(r.prompt), "n": r.new_tokens} for r in requests]
        for name, requests in make_workloads().items()
    }
    path.write_text(json.dumps(data))
