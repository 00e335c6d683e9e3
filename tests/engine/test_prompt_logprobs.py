"""A prompt's own log-probabilities, chunk by chunk: each once, in order, also when steps are run again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from inferx.engine import prompt_logprobs
from inferx.engine.prompt_logprobs import PromptLogprobs

VOCAB, HIDDEN = 11, 6


@dataclass
class FakeState:
    prompt_logprobs: list[Any] = field(default_factory=lambda: [None])


class FakeModel:
    """The head alone."""

    def __init__(self) -> None:
        self.head = torch.randn(HIDDEN, VOCAB)
        self.rows: list[int] = []

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.rows.append(len(hidden))
        return hidden @ self.head


class Prompt:
    """A prompt in chunks, and what is right for it."""

    def __init__(self, length: int) -> None:
        self.model = FakeModel()
        self.state = FakeState()
        self.hidden = torch.randn(length, HIDDEN)
        self.tokens = torch.randint(VOCAB, (length,)).tolist()
        logprobs = (self.hidden @ self.model.head).double().log_softmax(-1)
        self.expected = [float(logprobs[p, self.tokens[p + 1]]) for p in range(length - 1)]

    def compute(self, first: int, end: int) -> None:
        chunk = PromptLogprobs(
            self.state,  # type: ignore[arg-type]
            first,
            self.hidden[first:end],
            self.tokens[first + 1 : end + 1],
            1,
        )
        chunk.compute(self.model, None)  # type: ignore[arg-type]

    def check(self, end: int) -> None:
        known = self.state.prompt_logprobs
        assert known[0] is None
        values = [entry.logprobs[0] for entry in known[1:]]
        assert values == pytest.approx(self.expected[:end], abs=1e-5)
        assert [entry.token_ids[0] for entry in known[1:]] == self.tokens[1 : end + 1]


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_chunks(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_logprobs, "ROWS", rows)
    prompt = Prompt(20)
    for first, end in ((0, 7), (7, 8), (8, 19)):
        prompt.compute(first, end)
        prompt.check(end)
    assert max(prompt.model.rows) <= rows


def test_what_is_known_is_not_computed_again() -> None:
    """After a preemption the prompt starts over, in other chunks."""
    prompt = Prompt(20)
    prompt.compute(0, 9)
    for first, end, expected in ((0, 5, 9), (5, 12, 12), (12, 19, 19), (0, 19, 19)):
        prompt.compute(first, end)
        prompt.check(expected)


def test_a_chunk_behind_one_that_failed_waits_for_it() -> None:
    """Two steps were under way, and the first has no results: both are run again, in order."""
    prompt = Prompt(20)
    prompt.compute(0, 4)
    prompt.compute(9, 15)
    prompt.check(4)
    prompt.compute(4, 9)
    prompt.compute(9, 15)
    prompt.check(15)
