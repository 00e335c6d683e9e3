"""ModelRunner: executes planned steps on the model and its KV cache."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceABC
from typing import Protocol

import torch

from inferx import ops
from inferx.engine.batch import Batch, build_batch
from inferx.engine.request import Sequence
from inferx.engine.sample_state import SampleState
from inferx.engine.sampler import Sampler, SampleResult, compute_prompt_logprobs
from inferx.engine.scheduler_output import ScheduledSequence, SchedulerOutput
from inferx.models.decoder import Decoder

KV_DTYPES = {
    "auto": torch.float32,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# Logits of a long prompt are made and dropped piecewise: 64 rows of a 262k vocabulary are 64 MiB.
PROMPT_LOGPROB_ROWS = 64


class StepHandle(Protocol):
    """A launched step."""

    def results(self) -> list[SampleResult]:
        """Wait for the step; one result per sample, in order.  Raises what went wrong in it."""
        ...


class CompletedStep:
    """The handle of a step that ``launch`` has already computed."""

    def __init__(self, results: list[SampleResult]) -> None:
        self._results = results

    def results(self) -> list[SampleResult]:
        return self._results


class ModelRunner:
    """Owns the KV cache.  Everything a step writes is a function of the sequences alone, never of what
    else is in the step, so a step may be repeated in part after a failure."""

    # Steps that may be launched before the first one's results are taken.
    steps_in_flight = 1

    def __init__(
        self,
        model: Decoder,
        *,
        num_blocks: int,
        block_size: int,
        kv_cache_dtype: str = "auto",
        tokenizer_vocab_size: int | None = None,
    ) -> None:
        self.model = model
        self.block_size = block_size
        self.sampler = Sampler(model.config.vocab_size, tokenizer_vocab_size)
        self.tokenizer_vocab_size = tokenizer_vocab_size
        self.kv = _allocate_kv(model, num_blocks, block_size, KV_DTYPES[kv_cache_dtype])

    def copy_blocks(self, copies: SequenceABC[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer."""
        if copies:
            keys, values = [k for k, _ in self.kv], [v for _, v in self.kv]
            ops.copy_blocks(keys, values, torch.tensor(copies, dtype=torch.int64))

    def launch(self, plan: SchedulerOutput, state_of: Callable[[Sequence], SampleState]) -> StepHandle:
        """Start a step: its block copies, then its entries.  Steps run in the order of their launches.

        With ``steps_in_flight`` > 1 this returns before the step has run, and all that it needs of
        sequences, block tables and sampler rows must have been read by then.  The entries' ``token_source``
        refers to the launch before this one.
        """
        self.copy_blocks(plan.block_copies)
        return CompletedStep(self.execute(plan.scheduled, state_of))

    @torch.inference_mode()
    def execute(
        self, entries: SequenceABC[ScheduledSequence], state_of: Callable[[Sequence], SampleState]
    ) -> list[SampleResult]:
        """Compute the entries' tokens; one result per sample, in order.

        Prompt log-probabilities are appended to the state of the entry's own sequence.
        """
        batch = build_batch(entries, self.block_size)
        hidden = self.model.forward(
            batch.input_ids, batch.positions, batch.rope_lens, self.kv, batch.attention
        )
        self._prompt_logprobs(entries, batch, hidden, state_of)
        rows: list[int] = []
        samples: list[Sequence] = []
        for entry, last in zip(entries, batch.last_rows, strict=True):
            rows += [last] * len(entry.samples)
            samples += entry.samples
        if not samples:
            return []
        logits = self.model.compute_logits(hidden[rows])
        return self.sampler.sample(logits, [state_of(seq).row for seq in samples])

    def _prompt_logprobs(
        self,
        entries: SequenceABC[ScheduledSequence],
        batch: Batch,
        hidden: torch.Tensor,
        state_of: Callable[[Sequence], SampleState],
    ) -> None:
        for entry, first_row in zip(entries, batch.first_rows, strict=True):
            seq = entry.seq
            wanted = seq.request.engine_request.sampling_params.prompt_logprobs
            if wanted is None or seq.num_output_tokens:
                continue
            known = state_of(seq).prompt_logprobs
            # Position p predicts token p + 1; after a preemption the first ones are known already.
            first = max(entry.first_position, len(known) - 1)
            end = min(entry.first_position + entry.num_tokens, seq.num_prompt_tokens - 1)
            for start in range(first, end, PROMPT_LOGPROB_ROWS):
                stop = min(end, start + PROMPT_LOGPROB_ROWS)
                row = first_row + start - entry.first_position
                logits = self.model.compute_logits(hidden[row : row + stop - start])
                known += compute_prompt_logprobs(
                    logits, seq.token_ids[start + 1 : stop + 1], wanted, self.tokenizer_vocab_size
                )


def _allocate_kv(
    model: Decoder, num_blocks: int, block_size: int, dtype: torch.dtype
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Key and value cache of each layer, logical shape [num_blocks, block_size, kv heads, head_dim].

    Blocks are laid out head-major, so that attention reads one head's keys of a block in one go.  Not
    initialised: pages are taken when first written, and unwritten slots are never read.
    """
    blocks, size, heads, head_dim = model.kv_cache_shape(num_blocks, block_size)

    def cache() -> torch.Tensor:
        return torch.empty(blocks, heads, size, head_dim, dtype=dtype).transpose(1, 2)

    return [(cache(), cache()) for _ in range(model.num_kv_layers)]
