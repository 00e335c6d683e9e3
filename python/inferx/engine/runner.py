"""ModelRunner: executes planned steps on the model and its KV cache."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceABC
from typing import Protocol

import torch

from inferx import ops
from inferx.engine.batch import BatchArrays, build_batch
from inferx.engine.cuda_graphs import DecodeGraphs, GraphBackend
from inferx.engine.decode_batch import DecodeBatches
from inferx.engine.device import Device
from inferx.engine.pooling import PooledChunk, wanted_pooling
from inferx.engine.prompt_logprobs import PromptLogprobs, wanted_prompt_logprobs
from inferx.engine.request import Sequence
from inferx.engine.sample_state import SampleState
from inferx.engine.sampler import PendingSamples, Sampler, SampleResult
from inferx.engine.scheduler_output import ScheduledSequence, SchedulerOutput
from inferx.engine.staging import Staging
from inferx.models.decoder import Decoder
from inferx.models.layer import KVCache

StateOf = Callable[[Sequence], SampleState]
# What is made of a prompt's hidden states, when a step's results are taken.
PromptWork = PromptLogprobs | PooledChunk


class StepHandle(Protocol):
    """A launched step."""

    def results(self) -> list[SampleResult]:
        """Wait for the step; one result per sample, in order.  Raises what went wrong in it."""
        ...


class LaunchedStep:
    """A step on its way.  Prompt log-probabilities and what is pooled go to the states of the entries' own
    sequences."""

    def __init__(
        self, runner: ModelRunner, pending: PendingSamples | None, prompts: list[PromptWork]
    ) -> None:
        self._runner = runner
        self._pending = pending
        self._prompts = prompts

    @torch.inference_mode()
    def results(self) -> list[SampleResult]:
        runner = self._runner
        with runner.device.running():
            while self._prompts:
                self._prompts.pop(0).compute(runner.model, runner.tokenizer_vocab_size)
            return [] if self._pending is None else self._pending.results()


class ModelRunner:
    """Owns the KV cache.  Everything a step writes is a function of the sequences alone, never of what
    else is in the step, so a step may be repeated in part after a failure.

    On the CPU a step is over when ``launch`` returns.  On a GPU it is queued there: the arrays go through
    pinned memory, tokens that the step before samples stay on the device, and nothing waits before
    ``results``.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        device: Device,
        num_blocks: int,
        block_size: int,
        kv_dtype: torch.dtype,
        tokenizer_vocab_size: int | None = None,
        staging: Staging | None = None,
        graphs: DecodeGraphs | None = None,
    ) -> None:
        """staging: on a device.  graphs: of decode steps, where wanted; they need ``staging``."""
        self.model = model
        self.device = device
        self.block_size = block_size
        self.sampler = Sampler(model.config.vocab_size, tokenizer_vocab_size)
        self.tokenizer_vocab_size = tokenizer_vocab_size
        self.kv = allocate_kv(model, num_blocks, block_size, kv_dtype)
        # Steps that may be launched before the first one's results are taken.
        self.steps_in_flight = 1 if staging is None else 2
        # A cache of latents has no values.
        self._keys, self._values = [c[0] for c in self.kv], [c[1] for c in self.kv if len(c) > 1]
        self._decodes = DecodeBatches(block_size)
        self._staging = staging
        self._graphs = graphs
        self._sampled: torch.Tensor | None = None  # by the last launch

    def copy_blocks(self, copies: SequenceABC[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer."""
        if copies:
            with self.device.running():
                mapping = torch.tensor(copies, dtype=torch.int64)
                ops.copy_blocks(self._keys, self._values, mapping)

    def launch(self, plan: SchedulerOutput, state_of: StateOf) -> StepHandle:
        """Start a step: its block copies, then its entries.  Steps run in the order of their launches.

        With ``steps_in_flight`` > 1 this returns before the step has run, and all that it needs of
        sequences, block tables and sampler rows has been read by then.  The entries' ``token_source``
        refers to the launch before this one.
        """
        if self._staging is None and plan.num_decodes == len(plan.scheduled) > 0:
            return self._decode(plan, state_of)
        with self.device.running(), torch.inference_mode():
            if self._staging is None:
                self.copy_blocks(plan.block_copies)
                batch = build_batch(plan.scheduled, self.block_size)
                hidden = self._forward(batch)
            else:
                batch, hidden = self._run_staged(self._staging, plan)
            prompts: list[PromptWork] = [*wanted_prompt_logprobs(plan.scheduled, batch, hidden, state_of)]
            prompts += wanted_pooling(plan.scheduled, batch, hidden, state_of)
            pending = self._sample(plan.scheduled, batch, hidden, state_of)
        return LaunchedStep(self, pending, prompts)

    def capture_graph(self, *, idle: bool) -> bool:
        """Capture one decode graph if one is due; whether another is queued.  Waits for the device."""
        if self._graphs is None or self._staging is None:
            return False
        with self.device.running(), torch.inference_mode():
            bucket = self._graphs.policy.next_capture(idle=idle)
            if bucket is not None:
                # Nothing but padding: the run before the captured one writes and reads no block.
                batch = self._staging.stage([], pad_to=bucket)
                self._graphs.capture(bucket, lambda tables, out: self._forward(batch, 1, tables, out))
        return self._graphs.policy.has_queued

    def _decode(self, plan: SchedulerOutput, state_of: StateOf) -> PendingSamples:
        """A step on the CPU that only decodes: each entry's one token is sampled from."""
        self.copy_blocks(plan.block_copies)
        logits = self._forward_logits(self._decodes.build(plan.scheduled))
        return self.sampler.launch(logits, [state_of(entry.seq).row for entry in plan.scheduled])

    def _run_staged(self, staging: Staging, plan: SchedulerOutput) -> tuple[BatchArrays, torch.Tensor]:
        entries, graphs, bucket = plan.scheduled, self._graphs, None
        if graphs is not None:
            self.capture_graph(idle=False)
            graphs.policy.on_step()
            if not any(e.is_prefill or e.num_tokens > 1 for e in entries):
                bucket = graphs.policy.graph_for(len(entries))
        batch = staging.stage(entries, pad_to=bucket, block_copies=plan.block_copies)
        if plan.block_copies:
            ops.copy_blocks(self._keys, self._values, batch["block_copies"])
        if batch.layout.shape.sources:
            if self._sampled is None:
                raise RuntimeError("a step takes tokens from the one before, which sampled none")
            tokens = self._sampled.index_select(0, batch["source_index"])
            batch["input_ids"].index_copy_(0, batch["source_rows"], tokens)
        if graphs is not None and bucket is not None:
            return batch, graphs.run(bucket, batch["block_tables"])
        return batch, self._forward(batch, max(e.num_tokens for e in entries))

    def _forward(
        self,
        batch: BatchArrays,
        max_query_len: int | None = None,
        block_tables: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        attention = batch.attention(block_tables, max_query_len=max_query_len)
        ids, positions, rope_lens = batch["input_ids"], batch["positions"], batch["rope_lens"]
        if out is None:
            return self.model.forward(ids, positions, rope_lens, self.kv, attention)
        return self.model.forward(ids, positions, rope_lens, self.kv, attention, out)

    def _forward_logits(self, batch: BatchArrays) -> torch.Tensor:
        """Of the rows that are sampled from."""
        ids, positions, rope_lens = batch["input_ids"], batch["positions"], batch["rope_lens"]
        return self.model.forward_logits(
            ids, positions, rope_lens, self.kv, batch.attention(), batch["sample_rows"]
        )

    def _sample(
        self,
        entries: SequenceABC[ScheduledSequence],
        batch: BatchArrays,
        hidden: torch.Tensor,
        state_of: StateOf,
    ) -> PendingSamples | None:
        samples = [seq for entry in entries for seq in entry.samples]
        if not samples:
            self._sampled = None
            return None
        if all(e.num_tokens == 1 and len(e.samples) == 1 for e in entries):
            rows = hidden[: len(samples)]
        else:
            rows = hidden[batch["sample_rows"]]
        pending = self.sampler.launch(self.model.compute_logits(rows), [state_of(s).row for s in samples])
        self._sampled = pending.token_ids
        return pending


def allocate_kv(model: Decoder, num_blocks: int, block_size: int, dtype: torch.dtype) -> list[KVCache]:
    """The cache of each layer, its keys and its values (or its latents), each of ``model.kv_cache_shape``:
    [num_blocks, block_size, kv heads, head_dim].

    Blocks are laid out head-major, so that attention reads one head's keys of a block in one go.  Not
    initialised: on the CPU pages are taken when first written, and unwritten slots are never read.
    """
    blocks, size, heads, head_dim = model.kv_cache_shape(num_blocks, block_size)
    layers, tensors, device = model.num_kv_layers, model.kv_tensors, model.placement.device

    def cache() -> torch.Tensor:
        return torch.empty(blocks, heads, size, head_dim, dtype=dtype, device=device).transpose(1, 2)

    if not model.placement.dense:
        return [tuple(cache() for _ in range(tensors)) for _ in range(layers)]
    # One allocation, which an allocator that rounds each up cannot make larger than planned.
    pool = torch.empty(layers, tensors, blocks, heads, size, head_dim, dtype=dtype, device=device)
    return [tuple(layer) for layer in pool.transpose(3, 4)]


def make_runner(
    model: Decoder,
    device: Device,
    *,
    num_blocks: int,
    block_size: int,
    kv_dtype: torch.dtype,
    tokenizer_vocab_size: int | None,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
    graph_backend: GraphBackend | None = None,
) -> ModelRunner:
    """The runner of an engine.  graph_backend: None for no CUDA graphs."""
    if max_model_len > model.num_positions:
        # Beyond its tables, tokens would not be rotated, and nobody would notice.
        raise ValueError(
            f"max_model_len is {max_model_len}; the model was prepared for {model.num_positions} positions"
        )
    staging = graphs = None
    if not device.is_cpu:
        max_blocks = -(-max_model_len // block_size)
        staging = Staging(
            device,
            max_tokens=max_num_batched_tokens,
            max_batch=max_num_seqs,
            max_blocks=max_blocks,
            block_size=block_size,
            make_event=torch.cuda.Event if device.kind == "cuda" else None,
        )
        if graph_backend is not None:
            hidden = model.placement.empty(max_num_seqs, model.config.hidden_size)
            graphs = DecodeGraphs(graph_backend, hidden, max_blocks)
    return ModelRunner(
        model,
        device=device,
        num_blocks=num_blocks,
        block_size=block_size,
        kv_dtype=kv_dtype,
        tokenizer_vocab_size=tokenizer_vocab_size,
        staging=staging,
        graphs=graphs,
    )
