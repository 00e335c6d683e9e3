"""An engine in this process, driven as a user of ``LLMEngine`` does it, with clock and memory watched."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu.floors import shape_of
from benchmarks.cpu.memory import memory, resident_bytes
from benchmarks.cpu.metrics import summarize
from benchmarks.cpu.quantised import describe
from benchmarks.cpu.workloads import make_workloads, warm_up_prompt

from inferx import SamplingParams
from inferx.engine.args import EngineArgs
from inferx.engine.llm_engine import LLMEngine
from inferx.outputs import RequestOutput

Asked = tuple[list[int], int]  # a prompt, and how many tokens to generate


@dataclass
class Run:
    """wall: until the last token.  first_token: until the first of all.  steps: how many the engine made.
    tokens, texts: of each request."""

    wall: float
    first_token: float
    steps: int
    tokens: list[list[int]]
    texts: list[str]

    @property
    def digest(self) -> str:
        """The same for the same tokens."""
        return hashlib.sha256(repr(self.tokens).encode()).hexdigest()[:16]


def greedy(new_tokens: int, **more: Any) -> SamplingParams:
    """Exactly so many tokens, the most likely ones, with their text."""
    return SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, **more)


class Session:
    """order: model, threads, options (of EngineArgs), started (the parent's time.monotonic() at the start).

    The time to load is that from here to the engine's first token.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.started: float | None = order.get("started")
        self.after_imports = memory()
        self._begin = time.monotonic()
        self.args = EngineArgs(model=order["model"], num_threads=order["threads"], **order.get("options", {}))
        self.engine = LLMEngine(self.args)
        self.constructed = time.monotonic() - self._begin
        self._number = 0
        self._load: dict[str, float] = {}
        self._after_load: dict[str, float] = {}

    def warm_up(self) -> None:
        """A short request; its first token ends the load."""
        run = self.run([(warm_up_prompt(), 1)], until_first=True)
        self._load = {
            "construct_s": self.constructed,
            "load_s": self.constructed + run.first_token,
        }
        if self.started is not None:
            self._load["load_with_imports_s"] = time.monotonic() - self.started
        self._after_load = memory()
        self.run([(warm_up_prompt(130), 8)])

    def run(self, asked: Sequence[Asked], *, until_first: bool = False) -> Run:
        """All requests together until every one has ended, texts included."""
        engine = self.engine
        ids, texts = [], {}
        tokens: dict[str, list[int]] = {}
        start = time.perf_counter()
        for prompt, new_tokens in asked:
            self._number += 1
            ids.append(str(self._number))
            texts[ids[-1]], tokens[ids[-1]] = [], []
            engine.add_request(ids[-1], prompt, greedy(new_tokens))
        first, steps = None, 0
        while engine.has_work:
            for request_id, output in engine.step():
                if not isinstance(output, RequestOutput):
                    raise output
                if first is None:
                    first = time.perf_counter() - start
                tokens[request_id] += output.outputs[0].token_ids
                texts[request_id].append(output.outputs[0].text)
            steps += 1
        wall = time.perf_counter() - start
        for request_id, (_, new_tokens) in zip(ids, asked, strict=True):
            if len(tokens[request_id]) != new_tokens:
                raise RuntimeError(f"asked for {new_tokens} tokens, got {len(tokens[request_id])}")
        assert first is not None
        joined = ["".join(texts[i]) for i in ids]
        return Run(wall, first, steps, [tokens[i] for i in ids], joined)

    def measure(self, name: str) -> dict[str, Any]:
        """The figure of a workload, with the digest of its tokens."""
        requests = make_workloads()[name]
        run = self.run([(list(r.prompt), r.new_tokens) for r in requests])
        figure = summarize(name, requests, run.wall, run.first_token)
        return figure | {"steps": run.steps, "digest": run.digest, "characters": sum(map(len, run.texts))}

    def record(self) -> dict[str, Any]:
        """What else is known: times of the load, memory, sizes, types."""
        core = self.engine.core
        info = core.info
        now = memory()
        model_file = Path(core.checkpoint.path)
        pool = info.num_blocks * info.block_size * info.kv_bytes_per_token
        caches = [cache for layer in core.runner.kv for cache in layer]  # type: ignore[attr-defined]
        return {
            "load": self._load,
            "memory": {
                "after_imports": self.after_imports,
                "after_load": self._after_load,
                "at_end": now,
                "file_bytes": model_file.stat().st_size if model_file.is_file() else None,
                "weight_bytes": info.weight_bytes,
                "kv_pool_bytes": pool,
                "kv_resident_bytes": resident_bytes((c.data_ptr(), c.nbytes) for c in caches),
            },
            "shape": shape_of(core.model, info, core.checkpoint.weight_bytes).to_dict(),
            "quantised": describe(self.engine),
        }
