"""Engines whose runner works as on a GPU: staged batches, two steps under way, graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from inferx.engine.args import EngineArgs
from inferx.engine.core import EngineCore
from inferx.engine.cuda_graphs import DecodeGraphs, GraphPolicy
from inferx.engine.loading import LoadedModel, load_model
from inferx.engine.runner import ModelRunner
from inferx.engine.staging import Staging

Run = Callable[[], torch.Tensor]


@dataclass
class CallAgain:
    """In place of CUDA graphs: runs the function again, which reads what its inputs hold by then."""

    captures: int = 0
    replays: int = 0

    def capture(self, run: Run) -> Run:
        self.captures += 1
        run()
        return run

    def replay(self, graph: Run) -> None:
        self.replays += 1
        graph()


@dataclass
class Seen:
    """What a test must have met to show anything."""

    padded: int = 0
    sources: int = 0
    copies: int = 0
    graphs: CallAgain = field(default_factory=CallAgain)


class StagedRunner(ModelRunner):
    """Counts what it is given."""

    seen: Seen

    def _run_staged(self, staging: Staging, plan: Any) -> Any:
        batch, hidden = super()._run_staged(staging, plan)
        shape = batch.layout.shape
        self.seen.padded += shape.padded
        self.seen.sources += shape.sources
        self.seen.copies += shape.copies
        return batch, hidden


def staged_runner(loaded: LoadedModel, *, graphs: bool, interval: int = 3) -> StagedRunner:
    limits, device, model = loaded.scheduler_config, loaded.device, loaded.model
    max_blocks = -(-limits.max_model_len // limits.block_size)
    seen = Seen()
    decode_graphs = None
    if graphs:
        hidden = model.placement.empty(limits.max_num_seqs, model.config.hidden_size)
        decode_graphs = DecodeGraphs(seen.graphs, hidden, max_blocks)
        decode_graphs.policy = GraphPolicy(limits.max_num_seqs, interval=interval, uses_before_capture=1)
    runner = StagedRunner(
        model,
        device=device,
        num_blocks=limits.num_blocks,
        block_size=limits.block_size,
        kv_dtype=loaded.kv_dtype,
        tokenizer_vocab_size=loaded.tokenizer.vocab_size,
        staging=Staging(
            device,
            max_tokens=limits.max_num_batched_tokens,
            max_batch=limits.max_num_seqs,
            max_blocks=max_blocks,
            block_size=limits.block_size,
        ),
        graphs=decode_graphs,
    )
    runner.seen = seen
    return runner


def staged_core(path: Path, *, graphs: bool, **options: Any) -> EngineCore:
    """As core_harness.make_core, with a staged runner."""
    defaults: dict[str, Any] = {
        "device": "cpu",
        "num_blocks": 256,
        "block_size": 8,
        "max_num_seqs": 16,
        "seed": 0,
    }
    args = EngineArgs(model=str(path), **{**defaults, **options})
    loaded = load_model(args)
    return EngineCore(loaded, args, runner=staged_runner(loaded, graphs=graphs))
