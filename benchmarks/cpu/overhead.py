"""What a step costs beside the model: scheduling, batch, sampling, text, streaming.

The engine has no hooks for this: its methods are wrapped from outside, and the parts sum to the step.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.cpu.session import Session, greedy
from benchmarks.cpu.stopwatch import Stopwatch
from benchmarks.cpu.workloads import different_prompts

from inferx.engine import detokenizer
from inferx.engine import runner as runner_module
from inferx.engine.args import EngineArgs
from inferx.engine.async_engine import AsyncEngine
from inferx.engine.decode_batch import DecodeBatches
from inferx.engine.llm_engine import LLMEngine
from inferx.engine.sampler import PendingSamples

MODEL = "model"
STREAMING = "streaming"  # making deltas, and the caller's loop around them
PARTS = ("scheduling", "batch building", "sampling", "step loop", "detokenising", STREAMING)
# All but the model may take this share of a step.
MOST_SHARE = 0.05


def wrap_engine(watch: Stopwatch, engine: LLMEngine) -> None:
    """Every function that a part consists of.  AttributeError when one has another name by now."""
    core = engine.core
    watch.wrap(core, "step", "step loop")
    watch.wrap(core.scheduler, "schedule", "scheduling")
    watch.wrap(core.scheduler, "update", "scheduling")
    watch.wrap(runner_module, "build_batch", "batch building")
    watch.wrap(DecodeBatches, "build", "batch building")
    for name in ("forward", "forward_logits", "compute_logits"):
        watch.wrap(core.model, name, MODEL)
    watch.wrap(core.runner.sampler, "launch", "sampling")  # type: ignore[attr-defined]
    watch.wrap(runner_module.LaunchedStep, "results", "sampling")
    watch.wrap(PendingSamples, "results", "sampling")
    watch.wrap(detokenizer.Detokenizer, "push", "detokenising")
    watch.wrap(detokenizer.Detokenizer, "flush", "detokenising")


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Decode steps of ``streams`` requests in one process."""
    session = Session(order)
    session.warm_up()
    return profile(session.engine, order["streams"], order["prompt"], order["new_tokens"])


def profile(engine: LLMEngine, streams: int, prompt: int, new_tokens: int) -> dict[str, Any]:
    """Steps in which every stream decodes: seconds by part, each a mean over these steps and a median."""
    for number, ids in enumerate(different_prompts(streams, prompt, engine.core.info.vocab_size)):
        engine.add_request(f"overhead {number}", ids, greedy(new_tokens))
    watch = Stopwatch(STREAMING)
    wrap_engine(watch, engine)
    steps: list[dict[str, float]] = []
    texts = [""] * streams
    try:
        while engine.has_work:
            calls = watch.calls
            with watch.measuring() as parts:
                moved = 0
                for request_id, output in engine.step():
                    if isinstance(output, Exception):
                        raise output
                    texts[int(request_id.split()[1])] += output.outputs[0].text
                    moved += 1
            tokens = [state.num_output_tokens for state in engine.core.scheduler.running]
            if moved == streams and len(tokens) == streams and min(tokens) > 2:
                steps.append(parts | {"calls": watch.calls - calls})
    finally:
        watch.unwrap()
    if not steps:
        raise RuntimeError(f"no step in which all {streams} streams decode; max_num_seqs may be too low")
    return summary(steps, streams) | {"timer_s": timer_seconds(steps)}


def summary(steps: list[dict[str, float]], streams: int) -> dict[str, Any]:
    """mean, median: seconds by part.  step: the mean of a whole step, which the means sum to.  share: of all
    parts but the model, by means; median_share: by medians, which a busy machine moves less."""
    names = (MODEL, *PARTS)
    mean = {n: statistics.fmean(s.get(n, 0.0) for s in steps) for n in names}
    median = {n: statistics.median(s.get(n, 0.0) for s in steps) for n in names}
    whole = sum(mean.values())
    return {
        "streams": streams,
        "steps": len(steps),
        "step_s": whole,
        "mean_s": mean,
        "median_s": median,
        "share": (whole - mean[MODEL]) / whole,
        "median_share": 1 - median[MODEL] / sum(median.values()),
    }


def timer_seconds(steps: list[dict[str, float]]) -> float:
    """What the timers themselves add to a step."""

    def nothing() -> None:
        pass

    class Empty:
        call = staticmethod(nothing)

    watch, count = Stopwatch("rest"), 20_000
    watch.wrap(Empty, "call", "part")
    with watch.measuring():
        start = time.perf_counter()
        for _ in range(count):
            Empty.call()
        each = (time.perf_counter() - start) / count
    return each * statistics.fmean(s["calls"] for s in steps)


def run_async(order: dict[str, Any]) -> dict[str, Any]:
    """The same streams through ``AsyncEngine``: seconds per step on the clock, and of processor time in the
    front end's process (messages, detokenising, queues) and in the engine's."""
    args = EngineArgs(model=order["model"], num_threads=order["threads"], **order.get("options", {}))
    return asyncio.run(_stream(args, order["streams"], order["prompt"], order["new_tokens"]))


async def _stream(args: EngineArgs, streams: int, prompt: int, new_tokens: int) -> dict[str, Any]:
    engine = AsyncEngine(args)
    await engine.start()
    try:
        begun = 0
        all_begun, marks = asyncio.Event(), []

        def mark() -> None:
            marks.append((time.perf_counter(), time.process_time(), _cpu_seconds(engine.process_id)))

        async def consume(number: int, ids: list[int]) -> int:
            nonlocal begun
            length = received = 0
            async for output in engine.generate(ids, greedy(new_tokens), f"{number}"):
                length += len(output.outputs[0].text)
                received += len(output.outputs[0].token_ids)
                if received == 3:
                    begun += 1
                    if begun == streams:
                        mark()
                        first.append(engine.stats().generation_tokens)
                        all_begun.set()
            if not all_begun.is_set():
                raise RuntimeError(f"a stream of {streams} ended before the last began; ask for more tokens")
            if not last:
                mark()  # the first stream has ended: from here on, steps are smaller
                last.append(engine.stats().generation_tokens)
            return length

        first: list[int] = []
        last: list[int] = []
        asked = different_prompts(streams, prompt, engine.vocab_size)
        await asyncio.gather(*(consume(i, ids) for i, ids in enumerate(asked)))
    finally:
        await engine.shutdown()
    (wall0, front0, core0), (wall1, front1, core1) = marks
    steps = (last[0] - first[0]) / streams
    return {
        "streams": streams,
        "steps": steps,
        "step_s": (wall1 - wall0) / steps,
        "front_end_s": (front1 - front0) / steps,
        "engine_s": (core1 - core0) / steps,
    }


def _cpu_seconds(pid: int | None) -> float:
    """Of a process with its threads, in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
