"""CPU time of single steps, by how much background work is in them.

    python -m benchmarks.batch.steps [--model MODEL]

One thread and its CPU time, so that a busy machine shows less in the figures than in a clock's.  Medians.
``beside N``: an interactive decode with N background decodes.  ``chunk N``: N prompt tokens of background
work alone, with the time per token: how long a request that arrives then has to wait, and what small
chunks cost.  ``decodes N``: N background decodes alone.
"""

from __future__ import annotations

import argparse
import statistics
import time

from inferx.engine.args import DEFAULT_MODEL, EngineArgs
from inferx.engine.core import EngineCore
from inferx.engine.protocol import BACKGROUND_PRIORITY, EngineRequest
from inferx.sampling_params import SamplingParams

REPEATS = 15


class Steps:
    """A core, and what its steps take."""

    def __init__(self, model: str, **options: int) -> None:
        args = EngineArgs(
            model=model, num_threads=1, max_model_len=4096, enable_prefix_caching=False, **options
        )
        self.core = EngineCore.load(args)
        self.count = 0

    def add(self, tokens: int, max_tokens: int, priority: int = BACKGROUND_PRIORITY) -> str:
        self.count += 1
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        prompt = [1000 + (self.count * 997 + i * 31) % 20_000 for i in range(tokens)]
        name = f"r{self.count}"
        self.core.add_request(EngineRequest(name, prompt, params, time.monotonic(), priority))
        return name

    def until_decoding(self) -> None:
        while self.core.scheduler.waiting or any(
            s.num_output_tokens == 0 for s in self.core.scheduler.running
        ):
            self.core.step()

    def time(self, repeats: int = REPEATS) -> float:
        """Milliseconds of a step."""
        found = []
        for _ in range(repeats):
            begun = time.process_time()
            self.core.step()
            found.append(time.process_time() - begun)
        return 1e3 * statistics.median(found)

    def clear(self) -> None:
        for name in list(self.core.scheduler.requests):
            self.core.abort(name)


def beside(model: str, context: int) -> None:
    print(f"an interactive decode at {context} tokens with background decodes at as many")
    alone = 0.0
    for count in (0, 1, 2, 4, 8, 16, 32):
        steps = Steps(model, background_tokens=count, background_chunk=512)
        for _ in range(count):
            steps.add(context, 2000)
        steps.until_decoding()
        steps.add(context, 2000, 0)
        steps.until_decoding()
        taken = steps.time()
        alone = alone or taken
        print(f"beside {count:3}: {taken:7.2f} ms, {taken / alone:5.2f} times", flush=True)


def chunks(model: str) -> None:
    print("background work alone")
    for chunk in (32, 64, 128, 256, 512):
        steps = Steps(model, background_chunk=chunk)
        for _ in range(4):
            steps.add(3000, 10)
        taken = steps.time(5)
        print(f"chunk {chunk:4}: {taken:7.1f} ms, {1e3 * taken / chunk:6.0f} us a token", flush=True)
    steps = Steps(model, background_chunk=512)
    for count in (8, 16, 32, 64):
        for _ in range(count):
            steps.add(200, 2000)
        steps.until_decoding()
        print(f"decodes {count:3}: {steps.time():7.1f} ms", flush=True)
        steps.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--context", type=int, default=200)
    args = parser.parse_args()
    beside(args.model, args.context)
    chunks(args.model)


if __name__ == "__main__":
    main()
