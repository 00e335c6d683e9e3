"""A tiny checkpoint with a tokenizer, engine cores over it, and a driver that collects answers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from inferx.engine.args import EngineArgs
from inferx.engine.core import EngineCore
from inferx.engine.protocol import EngineOutput, EngineRequest, RequestMetrics
from inferx.sampling_params import SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VOCAB = 258  # the 256 bytes, <s>, </s>
EOS = 257


def save_tiny_llama(directory: Path, seed: int = 0, **config: object) -> Path:
    """A two-layer Llama with 5 query heads on 1, and a byte-level tokenizer."""
    # Here: the tests on a GPU run without transformers.
    from tests.models.model_harness import tiny_model
    from transformers import LlamaConfig

    settings: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 40,
        "intermediate_size": 72,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "bos_token_id": 256,
        "eos_token_id": EOS,
        **config,
    }
    return save_with_tokenizer(tiny_model(LlamaConfig(**settings), seed=seed), directory)


def save_tiny_moe(directory: Path, seed: int = 0, family: str = "mixtral") -> Path:
    """A two-layer Mixtral of 5 experts; or a DeepSeek-V3 of two layers, the first without experts."""
    from tests.models.model_harness import tiny_model
    from transformers import DeepseekV3Config, MixtralConfig

    settings: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 72,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 256,
        "eos_token_id": EOS,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    if family == "mixtral":
        config = MixtralConfig(**settings, head_dim=16, num_local_experts=5, num_experts_per_tok=2)
    else:
        settings["num_key_value_heads"] = 4
        config = DeepseekV3Config(
            **settings,
            moe_intermediate_size=32,
            n_routed_experts=8,
            num_experts_per_tok=3,
            n_group=4,
            topk_group=2,
            n_shared_experts=1,
            first_k_dense_replace=1,
            kv_lora_rank=32,
            q_lora_rank=24,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=16,
        )
    return save_with_tokenizer(tiny_model(config, seed=seed), directory)


def save_with_tokenizer(model: PreTrainedModel, directory: Path) -> Path:
    """A model of ``VOCAB`` ids, with a byte-level tokenizer."""
    model.save_pretrained(directory)
    save_tokenizer(directory)
    return directory


def save_tokenizer(directory: Path) -> None:
    """The 256 bytes, <s> and </s>."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)} | {"<s>": 256, "</s>": EOS}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(directory / "tokenizer.json"))


def make_core(path: Path, **options: object) -> EngineCore:
    defaults: dict[str, object] = {
        "device": "cpu",
        "num_blocks": 256,
        "block_size": 8,
        "max_num_seqs": 16,
        "seed": 0,
    }
    return EngineCore.load(EngineArgs(model=str(path), **{**defaults, **options}))


def request(
    request_id: str, prompt: list[int], params: SamplingParams, *, priority: int = 0, salt: str | None = None
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=params,
        arrival_time=time.monotonic(),
        priority=priority,
        cache_salt=salt,
    )


@dataclass
class Answer:
    """One sample's whole answer, with everything that must not depend on the batch."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)
    prompt_logprobs: list[object] | None = None
    finish_reason: str | None = None
    error: str | None = None

    def take(self, output: EngineOutput) -> None:
        self.tokens += output.new_token_ids
        self.logprobs += output.logprobs or []
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = list(output.prompt_logprobs)
        self.finish_reason = output.finish_reason
        self.error = output.error


@dataclass
class Run:
    answers: dict[tuple[str, int], Answer]
    metrics: list[RequestMetrics]
    num_steps: int


def drive(core: EngineCore, arrivals: Iterable[tuple[int, EngineRequest]], max_steps: int = 20_000) -> Run:
    """Run to the end.  ``arrivals``: (step before which it arrives, request), in order of step."""
    answers: dict[tuple[str, int], Answer] = defaultdict(Answer)
    metrics: list[RequestMetrics] = []
    queue = list(arrivals)
    steps = 0
    while queue or core.has_work:
        while queue and (queue[0][0] <= steps or not core.has_work):
            core.add_request(queue.pop(0)[1])
        for output in core.step():
            answers[output.request_id, output.index].take(output)
            if output.metrics is not None:
                metrics.append(output.metrics)
        core.scheduler.check_invariants()
        steps += 1
        assert steps < max_steps, "no end in sight"
    return Run(dict(answers), metrics, steps)


def assert_idle(core: EngineCore) -> None:
    """Nothing runs or waits, every block is free or cached, and no state is left behind."""
    stats = core.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_free_blocks == stats.num_blocks
    assert core._states == {}
