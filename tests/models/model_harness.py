"""Tiny random checkpoints made with transformers, and a runner that drives a model over a paged cache.

The oracle is transformers in float32 with eager attention.  The runner scatters each request's blocks over
the cache at random and fills every slot with NaN first, so a wrong slot, block or length shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from inferx import ops
from inferx.layers.attention import AttentionMetadata
from inferx.loader import open_checkpoint
from inferx.models import Model, build_model

LOGIT_TOLERANCE = 1e-3
VOCAB = 251


def randomise(model: PreTrainedModel, seed: int) -> None:
    """Weights so large that every part shows in logits of size 1 to 10; biases N(0, 1); norms far from
    one."""
    generator = torch.Generator().manual_seed(seed)

    def normal(parameter: torch.Tensor, std: float, mean: float = 0.0) -> None:
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * std + mean)

    gemma = "Gemma" in type(model).__name__
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                normal(parameter, 1.0)
            elif "norm" in name:
                # Gemma multiplies by 1 + weight.
                normal(parameter, 0.4, mean=0.0 if gemma else 1.0)
            elif "embed_tokens" in name:
                # Tied tables are the head too: logits of a few units from normalised states.
                normal(parameter, 2.0 / parameter.shape[1] ** 0.5)
            elif "lm_head" in name:
                normal(parameter, 3.0 / parameter.shape[1] ** 0.5)
            elif parameter.ndim == 1:  # attention sinks
                normal(parameter, 2.0)
            else:
                # gpt-oss keeps its experts [E, inputs, outputs].
                inputs = parameter.shape[
                    -2 if "GptOss" in type(model).__name__ and parameter.ndim == 3 else -1
                ]
                normal(parameter, 1.5 / max(inputs, 1) ** 0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # of scores between 0 and 1
                normal(buffer, 0.3)


def tiny_model(config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A model of ``config`` with seeded random weights, eager attention, float32."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    randomise(model, seed)
    return model.eval()


def save(model: PreTrainedModel, directory: Path) -> Path:
    model.save_pretrained(directory)
    return directory


def load(path: Path, **options: Any) -> Model:
    checkpoint = open_checkpoint(path)
    try:
        return build_model(checkpoint, **options)
    finally:
        checkpoint.close()


def fresh_rotary(model: PreTrainedModel) -> None:
    """transformers' dynamic rotary keeps the longest length seen; a new request must not inherit it."""
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(model.config)


@torch.no_grad()
def oracle_logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """float32 [T, vocab] of one sequence."""
    fresh_rotary(model)
    return model(ids[None]).logits[0].float()


@torch.no_grad()
def oracle_greedy(model: PreTrainedModel, ids: torch.Tensor, count: int) -> list[int]:
    fresh_rotary(model)
    model.generation_config.eos_token_id = None  # else it would forbid or stop at the end token
    output = model.generate(
        ids[None],
        attention_mask=torch.ones_like(ids)[None],
        do_sample=False,
        max_new_tokens=count,
        pad_token_id=0,
    )
    return output[0, len(ids) :].tolist()


def prompt(length: int, seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 + seed)
    # The first ids are special in most families' defaults.
    return torch.randint(4, vocab, (length,), generator=generator)


@dataclass(eq=False)
class Sequence:
    """A request in the runner: its tokens so far, how many are in the cache, and the blocks it holds."""

    tokens: list[int]
    prompt_len: int
    blocks: list[int] = field(default_factory=list)
    computed: int = 0

    def rope_len(self, position: int) -> int:
        return self.prompt_len if position < self.prompt_len else position + 1


class PagedRunner:
    """Runs steps of (sequence, number of tokens) through a model, as the engine does."""

    def __init__(
        self,
        model: Model,
        *,
        tokens: int = 2048,
        block_size: int = 8,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.block_size = block_size
        num_blocks = -(-tokens // block_size) + 3
        shape = model.kv_cache_shape(num_blocks, block_size)
        self.kv = [
            tuple(torch.full(shape, torch.nan, dtype=dtype) for _ in range(model.kv_tensors))
            for _ in range(model.num_kv_layers)
        ]
        generator = torch.Generator().manual_seed(seed)
        self.free = torch.randperm(num_blocks, generator=generator).tolist()

    def start(self, ids: torch.Tensor) -> Sequence:
        return Sequence(ids.tolist(), len(ids))

    def step(self, batch: list[tuple[Sequence, int]], last_only: bool = False) -> list[torch.Tensor]:
        """Computes the next ``count`` tokens of each sequence.

        Returns their logits, float32 [count, vocab] each; with last_only those of the last token, [1, vocab].
        """
        ids: list[int] = []
        positions: list[int] = []
        rope_lens: list[int] = []
        slots: list[int] = []
        for sequence, count in batch:
            end = sequence.computed + count
            while len(sequence.blocks) * self.block_size < end:
                sequence.blocks.append(self.free.pop())
            for position in range(sequence.computed, end):
                ids.append(sequence.tokens[position])
                positions.append(position)
                rope_lens.append(sequence.rope_len(position))
                slots.append(
                    sequence.blocks[position // self.block_size] * self.block_size
                    + position % self.block_size
                )
            sequence.computed = end
        counts = [count for _, count in batch]
        width = max(len(sequence.blocks) for sequence, _ in batch)
        tables = [sequence.blocks + [0] * (width - len(sequence.blocks)) for sequence, _ in batch]
        metadata = AttentionMetadata(
            block_tables=torch.tensor(tables, dtype=torch.int32),
            cu_seqlens_q=torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32),
            seq_lens=torch.tensor([sequence.computed for sequence, _ in batch], dtype=torch.int32),
            slot_mapping=torch.tensor(slots),
        )
        hidden = self.model.forward(
            torch.tensor(ids), torch.tensor(positions), torch.tensor(rope_lens), self.kv, metadata
        )
        if last_only:
            return list(self.model.compute_logits(hidden[metadata.cu_seqlens_q[1:] - 1]).split(1))
        return list(self.model.compute_logits(hidden).split(counts))

    def whole(self, ids: torch.Tensor) -> torch.Tensor:
        return self.step([(self.start(ids), len(ids))])[0]

    def chunked(self, ids: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        """Prefill in chunks of these sizes, repeated until the prompt is done."""
        sequence, parts = self.start(ids), []
        while sequence.computed < len(ids):
            size = sizes[len(parts) % len(sizes)]
            parts += self.step([(sequence, min(size, len(ids) - sequence.computed))])
        return torch.cat(parts)

    def batched(self, ids: torch.Tensor, others: list[torch.Tensor], size: int) -> torch.Tensor:
        """The prompt in chunks of ``size``, between others at other stages of theirs."""
        sequence, parts = self.start(ids), []
        rest = [self.start(other) for other in others]
        while sequence.computed < len(ids):
            batch = [(sequence, min(size, len(ids) - sequence.computed))]
            for i, other in enumerate(rest):
                count = min(3 * i + 1, len(other.tokens) - other.computed)
                if count:
                    batch.insert(0 if i % 2 else len(batch), (other, count))
            index = [entry[0] for entry in batch].index(sequence)
            parts.append(self.step(batch)[index])
        return torch.cat(parts)

    def greedy(self, ids: torch.Tensor, count: int) -> list[int]:
        return self.continued(ids, count)[1]

    def continued(self, ids: torch.Tensor, count: int) -> tuple[torch.Tensor, list[int]]:
        """Logits of the first step, float32 [vocab], and ``count`` greedy tokens."""
        sequence = self.start(ids)
        first = logits = self.step([(sequence, len(ids))], last_only=True)[0][-1]
        for _ in range(count - 1):
            sequence.tokens.append(int(logits.argmax()))
            logits = self.step([(sequence, 1)])[0][-1]
        return first, [*sequence.tokens[len(ids) :], int(logits.argmax())]


def check_against_oracle(
    oracle: PreTrainedModel, model: Model, ids: torch.Tensor, new_tokens: int = 6
) -> float:
    """The whole contract for one prompt: logits, invariance, continuation.  Returns the logits' error."""
    expected = oracle_logits(oracle, ids)
    magnitude = expected.abs().max().item()
    assert 1.0 < magnitude < 100.0, f"a test whose logits reach {magnitude} shows little"
    actual = PagedRunner(model).whole(ids)
    error = (actual - expected).abs().max().item()
    assert error <= LOGIT_TOLERANCE, f"logits differ by {error} (largest {magnitude})"
    assert torch.equal(PagedRunner(model, seed=1, block_size=16).chunked(ids, [7, 1, 13, 30]), actual)
    others = [prompt(length, seed=length) for length in (11, 40, 3)]
    assert torch.equal(PagedRunner(model, seed=2).batched(ids, others, 17), actual)
    assert PagedRunner(model, seed=3).greedy(ids, new_tokens) == oracle_greedy(oracle, ids, new_tokens)
    return error


def check_token_by_token(model: Model, ids: torch.Tensor) -> None:
    assert torch.equal(PagedRunner(model, seed=4).chunked(ids, [1]), PagedRunner(model).whole(ids))


def empty_step(model: Model) -> torch.Tensor:
    """What a step of no tokens gives."""
    none = torch.empty(0, dtype=torch.int64)
    metadata = AttentionMetadata(
        block_tables=torch.empty(0, 1, dtype=torch.int32),
        cu_seqlens_q=torch.zeros(1, dtype=torch.int32),
        seq_lens=torch.empty(0, dtype=torch.int32),
        slot_mapping=none,
    )
    return model.forward(none, none, none, PagedRunner(model).kv, metadata)


def check_threads(model: Model, ids: torch.Tensor) -> None:
    """Logits have the same bits whatever the number of threads."""
    threads = ops.get_num_threads()
    try:
        results = []
        for count in (1, 2, 3):
            ops.set_num_threads(count)
            results.append(PagedRunner(model).whole(ids))
    finally:
        ops.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
