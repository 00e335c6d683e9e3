"""Log-probabilities of a prompt's own tokens, computed when a step's results are taken."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceABC
from dataclasses import dataclass

import torch

from inferx.engine.batch import BatchArrays
from inferx.engine.request import Sequence
from inferx.engine.sample_state import SampleState
from inferx.engine.sampler import compute_prompt_logprobs
from inferx.engine.scheduler_output import ScheduledSequence
from inferx.models.decoder import Decoder

# Logits of a long prompt are made and dropped piecewise: 64 rows of a 262k vocabulary are 64 MiB.
ROWS = 64


@dataclass(frozen=True)
class PromptLogprobs:
    """A chunk of a prompt whose log-probabilities are wanted.

    hidden: the states of positions ``first`` and on.  next_token_ids: the tokens that follow them.
    """

    state: SampleState
    first: int
    hidden: torch.Tensor
    next_token_ids: list[int]
    count: int

    def compute(self, model: Decoder, tokenizer_vocab_size: int | None) -> None:
        """Append to the state what it does not have yet: after a preemption the first ones are known.

        Entry p + 1 comes from position p.  Nothing is done when entries before this chunk's are missing: then
        a step before this one has failed, and both run again.
        """
        known = self.state.prompt_logprobs
        done = len(known) - 1 - self.first
        if done < 0:
            return
        for start in range(done, len(self.next_token_ids), ROWS):
            rows = slice(start, start + ROWS)
            logits = model.compute_logits(self.hidden[rows])
            known += compute_prompt_logprobs(
                logits, self.next_token_ids[rows], self.count, tokenizer_vocab_size
            )


def wanted_prompt_logprobs(
    entries: SequenceABC[ScheduledSequence],
    batch: BatchArrays,
    hidden: torch.Tensor,
    state_of: Callable[[Sequence], SampleState],
) -> list[PromptLogprobs]:
    """One for each entry of a step that computes a part of a prompt whose log-probabilities are wanted."""
    found = []
    for entry, row in zip(entries, batch.first_rows, strict=True):
        seq = entry.seq
        count = seq.request.engine_request.sampling_params.prompt_logprobs
        if count is None:
            continue
        state = state_of(seq)
        # Not by the number of output tokens: one may be pending when this step is run again.
        if len(state.prompt_logprobs) >= seq.num_prompt_tokens:
            continue
        first = entry.first_position
        end = min(first + entry.num_tokens, seq.num_prompt_tokens - 1)
        if first < end:
            next_token_ids = list(seq.token_ids[first + 1 : end + 1])
            rows = hidden[row : row + end - first]
            found.append(PromptLogprobs(state, first, rows, next_token_ids, count))
    return found
