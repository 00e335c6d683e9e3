"""What a batch costs interactive requests, and what they leave it.

    python -m benchmarks.batch [--model MODEL] [--background-tokens 4,8,16] [--threads 1]

One interactive stream (a prompt, then tokens, again and again) runs alone and beside a batch that always
has more to do; arrival times fall anywhere in a step.  Printed for each setting: medians over the rounds of
time to first token and time between tokens, and the batch's tokens per second, alone and beside it.  The
first line, without a batch, is what to compare with; ``priority`` is the batch as ordinary requests of a
lower priority, without the rules for background work.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

from inferx.engine.args import DEFAULT_MODEL, EngineArgs
from inferx.engine.async_engine import AsyncEngine
from inferx.engine.protocol import BACKGROUND_PRIORITY
from inferx.sampling_params import SamplingParams

PROMPT_TOKENS, OUTPUT_TOKENS = 120, 48
BATCH_PROMPT_TOKENS, BATCH_OUTPUT_TOKENS = 200, 64


@dataclass
class Round:
    """first: seconds to the first token.  between: median seconds between tokens, worst the largest."""

    first: float
    between: float
    worst: float


@dataclass
class Result:
    setting: str
    first_ms: float | None = None
    between_ms: float | None = None
    worst_ms: float | None = None
    batch_alone: float | None = None  # tokens per second, prompts included
    batch_beside: float | None = None


class Batch:
    """Keeps the engine supplied with requests; counts tokens."""

    def __init__(self, engine: AsyncEngine, width: int, priority: int) -> None:
        self.engine = engine
        self.priority = priority
        self.tokens = 0
        self.tasks = [asyncio.create_task(self._work(i)) for i in range(width)]

    async def _work(self, number: int) -> None:
        rng = random.Random(number)
        params = SamplingParams(temperature=0.0, max_tokens=BATCH_OUTPUT_TOKENS, ignore_eos=True)
        for i in range(1_000_000):
            prompt = [rng.randrange(1000, 20_000) for _ in range(BATCH_PROMPT_TOKENS)]
            outputs = self.engine.generate(prompt, params, f"b{number}-{i}", priority=self.priority)
            first = True
            async for output in outputs:
                self.tokens += len(output.outputs[0].token_ids) + (BATCH_PROMPT_TOKENS if first else 0)
                first = False

    async def rate(self, seconds: float) -> float:
        before, begun = self.tokens, time.perf_counter()
        await asyncio.sleep(seconds)
        return (self.tokens - before) / (time.perf_counter() - begun)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def interactive(engine: AsyncEngine, rounds: int, rng: random.Random) -> list[Round]:
    found = []
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    for i in range(rounds):
        await asyncio.sleep(rng.uniform(0.1, 0.4))
        prompt = [rng.randrange(1000, 20_000) for _ in range(PROMPT_TOKENS)]
        times = [time.perf_counter()]
        async for _ in engine.generate(prompt, params, f"i{rng.random()}-{i}"):
            times.append(time.perf_counter())
        gaps = [b - a for a, b in itertools.pairwise(times[1:])]
        found.append(Round(times[1] - times[0], statistics.median(gaps), max(gaps)))
    return found


async def measure(args: Any, setting: str, background_tokens: int | None, priority: int | None) -> Result:
    engine_args = EngineArgs(
        model=args.model,
        num_threads=args.threads,
        max_model_len=2048,
        background_tokens=background_tokens,
        background_chunk=args.background_chunk,
        enable_prefix_caching=False,
    )
    engine = AsyncEngine(engine_args)
    await engine.start()
    result = Result(setting)
    rng = random.Random(0)
    try:
        await interactive(engine, 1, rng)
        batch = None
        if priority is not None:
            batch = Batch(engine, 2 * engine.max_num_seqs, priority)
            await asyncio.sleep(args.seconds)
            result.batch_alone = await batch.rate(2 * args.seconds)
        before, begun = batch.tokens if batch else 0, time.perf_counter()
        rounds = await interactive(engine, args.rounds, rng)
        if batch is not None:
            result.batch_beside = (batch.tokens - before) / (time.perf_counter() - begun)
            await batch.stop()
        result.first_ms = 1e3 * statistics.median(r.first for r in rounds)
        result.between_ms = 1e3 * statistics.median(r.between for r in rounds)
        result.worst_ms = 1e3 * statistics.median(r.worst for r in rounds)
    finally:
        await engine.shutdown()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--background-tokens", default="2,4,8,16")
    parser.add_argument("--background-chunk", type=int)
    parser.add_argument("--json")
    args = parser.parse_args()
    settings: list[tuple[str, int | None, int | None]] = [("alone", None, None), ("priority", None, 1)]
    settings += [(f"background {n}", int(n), BACKGROUND_PRIORITY) for n in args.background_tokens.split(",")]
    print(f"{'setting':16} {'first':>9} {'between':>9} {'worst':>9}   batch alone, beside (tokens/s)")
    results = []
    for setting in settings:
        result = asyncio.run(measure(args, *setting))
        results.append(asdict(result))
        batch = "" if result.batch_alone is None else f"{result.batch_alone:9.0f} {result.batch_beside:9.0f}"
        print(
            f"{result.setting:16} {result.first_ms:6.1f} ms {result.between_ms:6.2f} ms "
            f"{result.worst_ms:6.1f} ms   {batch}",
            flush=True,
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
