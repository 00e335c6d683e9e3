"""Pooling: a prompt's hidden states become one vector.

A pooling request goes through scheduler and runner as a request for one token would, so it is chunked,
batched, preempted and run again like any other; the token is dropped, and its end brings the embedding.

The states are summed one after another in float64, by position, so the sum does not depend on how the
prompt was cut into chunks.  Positions that the prefix cache provides have no hidden states: a mean does
not look anything up there (``KVManager.lookup``), the last token is always computed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceABC
from dataclasses import dataclass

import numpy as np
import torch

from inferx.engine.batch import BatchArrays
from inferx.engine.request import Sequence
from inferx.engine.sample_state import SampleState
from inferx.engine.scheduler_output import ScheduledSequence
from inferx.models.decoder import Decoder
from inferx.pooling_params import PoolingParams


class Pooler:
    """What has been pooled of one prompt so far: ``num_pooled`` leading positions."""

    def __init__(self, params: PoolingParams, num_tokens: int) -> None:
        self.params = params
        self.num_tokens = num_tokens
        # A last token needs nothing of those before it.
        self.num_pooled = num_tokens - 1 if params.pooling == "last" else 0
        self._total: np.ndarray | None = None

    def add(self, first: int, rows: np.ndarray) -> None:
        """The states of positions ``first`` and on, float32 [n, hidden].

        Known ones are skipped: after a preemption, or when a step is run again.  When some before these are
        missing, a step before this one has failed; both will be run again.
        """
        known = self.num_pooled - first
        if known < 0:
            return
        for row in rows[known:]:
            if self._total is None:
                self._total = np.zeros(row.shape, np.float64)
            self._total += row
            self.num_pooled += 1

    def result(self) -> bytes:
        """The embedding, as float32.  ValueError when it is not finite or has no direction."""
        if self._total is None or self.num_pooled != self.num_tokens:
            raise ValueError(f"{self.num_pooled} of {self.num_tokens} positions were pooled")
        params = self.params
        vector = self._total / self.num_tokens if params.pooling == "mean" else self._total
        vector = vector[: params.dimensions]
        if params.normalize:
            length = float(np.sqrt(np.sum(vector * vector)))
            if length == 0:
                raise ValueError("the embedding is zero and cannot be normalised")
            vector = vector / length
        if not np.isfinite(vector).all():
            raise ValueError("the model's hidden states are not finite")
        return vector.astype(np.float32).tobytes()


@dataclass(frozen=True)
class PooledChunk:
    """A chunk of a prompt, with the hidden states of its positions ``first`` and on."""

    pooler: Pooler
    first: int
    hidden: torch.Tensor

    def compute(self, model: Decoder, tokenizer_vocab_size: int | None) -> None:
        """When the step's results are taken; as ``PromptLogprobs.compute``."""
        self.pooler.add(self.first, self.hidden.float().cpu().numpy())


def wanted_pooling(
    entries: SequenceABC[ScheduledSequence],
    batch: BatchArrays,
    hidden: torch.Tensor,
    state_of: Callable[[Sequence], SampleState],
) -> list[PooledChunk]:
    """One for each entry of a step that computes states which are pooled."""
    found = []
    for entry, row in zip(entries, batch.first_rows, strict=True):
        seq = entry.seq
        if seq.request.engine_request.pooling is None:
            continue
        pooler = state_of(seq).pooler
        assert pooler is not None
        first, end = entry.first_position, min(entry.first_position + entry.num_tokens, seq.num_prompt_tokens)
        if pooler.params.pooling == "last":
            row, first = row + max(0, end - 1 - first), end - 1
            if end != seq.num_prompt_tokens:
                continue
        if first < end:
            found.append(PooledChunk(pooler, first, hidden[row : row + end - first]))
    return found
