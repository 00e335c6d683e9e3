"""Decode and prefill rates of the whole engine, beside what the machine's memory and arithmetic allow.

    python -m benchmarks.engine [--model MODEL] [--threads 2] [--repeats 5] [--json FILE]

decode N: N requests of 128 prompt tokens generate together; the rate is N tokens over the median time of
the steps in which all of them decode.  Its floor is the time to read every packed weight (of experts: those
that the step's tokens chose, counted in a pass of its own) and the keys and values of every request once, at
the measured read bandwidth; with many requests arithmetic takes longer than that, and then its floor is the
one that counts: attention at the measured float32 multiply-add peak, products at that too, or at the
measured peak of 8-bit integers where activations are int8.
prefill: one prompt of 2,000 tokens, one generated; the rate is prompt tokens over the time to the first
token.

Greedy, end tokens ignored, prefix cache off.  Medians over ``--repeats`` runs, each in the same process.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from benchmarks.engine.experts import ExpertCounter
from benchmarks.kernels.probes import Probes

from inferx import SamplingParams, __version__, ops
from inferx.engine.args import DEFAULT_MODEL, EngineArgs
from inferx.engine.llm_engine import LLMEngine

PROMPT_TOKENS = 128
NEW_TOKENS = 64
PREFILL_TOKENS = 2000


@dataclass
class Figure:
    """One line of the table.  floor_ms: what a step (or the prefill) must take at least; limit: why."""

    name: str
    tokens_per_second: float
    measured_ms: float
    floor_ms: float
    limit: str
    share: float


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.repeats = args.repeats
        self.random = random.Random(0)
        self.engine = LLMEngine(
            EngineArgs(model=args.model, num_threads=args.threads, enable_prefix_caching=False, seed=0)
        )
        probes = Probes(ops.build_info()["simd_target"])
        self.bandwidth = probes.read_bandwidth(args.threads)
        self.flops = probes.flops(args.threads)
        # Of products, and what the table calls it.
        self.product_rate, self.limit = self.flops, "float32"
        int8_rate = probes.int8_operations(args.threads)
        if self.engine.core.model.placement.int8 and int8_rate is not None:
            self.product_rate, self.limit = int8_rate, "int8"
        self.experts = ExpertCounter(self.engine.core.model)
        self._number = 0

    def add(self, prompt_tokens: int, new_tokens: int) -> None:
        self._number += 1
        prompt = [self.random.randrange(1000, 20000) for _ in range(prompt_tokens)]
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        self.engine.add_request(str(self._number), prompt, params)

    def decode(self, count: int) -> Figure:
        """All steps in which ``count`` requests each decode one token."""
        step = statistics.median(self._decode_pass(count) for _ in range(self.repeats))
        idle = self._idle_experts(count)
        context = PROMPT_TOKENS + NEW_TOKENS // 2
        info = self.engine.core.info
        read = info.weight_bytes - idle + count * context * info.kv_bytes_per_token
        return self._figure(f"decode {count}", count, step, read, count * self._token_seconds(context))

    def _decode_pass(self, count: int) -> float:
        """The median time of a step."""
        for _ in range(count):
            self.add(PROMPT_TOKENS, NEW_TOKENS)
        times = []
        while self.engine.has_work:
            start = time.perf_counter()
            moved = len(list(self.engine.step()))
            elapsed = time.perf_counter() - start
            if moved == count and self._all_decoding(count):
                times.append(elapsed)
        return statistics.median(times)

    def _idle_experts(self, count: int) -> float:
        """Bytes of experts that a step of ``count`` decoding requests does not read."""
        for _ in range(count):
            self.add(PROMPT_TOKENS, NEW_TOKENS)
        while not self._all_decoding(count):
            list(self.engine.step())
        with self.experts.counting():
            while self._all_decoding(count):
                list(self.engine.step())
        while self.engine.has_work:
            list(self.engine.step())
        return self.experts.idle_bytes

    def _all_decoding(self, count: int) -> bool:
        running = self.engine.core.scheduler.running
        return len(running) == count and all(s.num_output_tokens > 2 for s in running)

    def prefill(self) -> Figure:
        times = []
        for _ in range(self.repeats):
            self.add(PREFILL_TOKENS, 1)
            start = time.perf_counter()
            while self.engine.has_work:
                for _ in self.engine.step():
                    pass
            times.append(time.perf_counter() - start)
        seconds = statistics.median(times)
        # The head is only needed for the last token.
        arithmetic = PREFILL_TOKENS * self._token_seconds(PREFILL_TOKENS // 2, head=False)
        return self._figure(
            f"prefill {PREFILL_TOKENS}",
            PREFILL_TOKENS,
            seconds,
            self.engine.core.info.weight_bytes,
            arithmetic,
        )

    def _token_seconds(self, context: int, head: bool = True) -> float:
        """At the peaks: projections, head and attention over ``context`` tokens."""
        model = self.engine.core.model
        c = model.config
        table = c.hidden_size * c.vocab_size
        # A tied table is counted once, and it is the head; another one is only looked up.
        active = model.parameters.active - (0 if c.tie_word_embeddings else table)
        if c.mla is None:
            attention = 2 * c.num_attention_heads * c.head_dim * context
        else:
            attention = c.num_attention_heads * (c.mla.cache_dim + c.mla.kv_lora_rank) * context
        products = 2.0 * (active - (0 if head else table))  # multiply-adds count as two
        return products / self.product_rate + 2.0 * c.num_hidden_layers * attention / self.flops

    def _figure(self, name: str, tokens: int, seconds: float, read_bytes: float, arithmetic: float) -> Figure:
        memory = read_bytes / self.bandwidth
        floor = max(memory, arithmetic)
        return Figure(
            name=name,
            tokens_per_second=tokens / seconds,
            measured_ms=seconds * 1e3,
            floor_ms=floor * 1e3,
            limit="memory" if memory >= arithmetic else self.limit,
            share=floor / seconds,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--threads", type=int, default=ops.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures and the machine's description there")
    args = parser.parse_args()
    bench = Bench(args)
    print(
        f"{args.model}, {args.threads} threads, {ops.build_info()['simd_target']}: "
        f"reads {bench.bandwidth / 1e9:.1f} GB/s, float32 peak {bench.flops / 1e9:.0f} GFLOP/s"
    )
    print(f"{'':14} {'tok/s':>8} {'ms':>9} {'floor ms':>9}  {'limit':8} {'share':>6}")
    figures = []
    for run in (lambda: bench.decode(1), lambda: bench.decode(16), lambda: bench.decode(64), bench.prefill):
        figure = run()
        figures.append(figure)
        print(
            f"{figure.name:14} {figure.tokens_per_second:8.1f} {figure.measured_ms:9.2f} "
            f"{figure.floor_ms:9.2f}  {figure.limit:8} {figure.share:6.1%}",
            flush=True,
        )
        if figure.share > 1:
            raise SystemExit(f"{figure.name} is faster than its floor: the floor or the clock is wrong")
    if args.json is not None:
        record = {
            "date": date.today().isoformat(),
            "inferx": __version__,
            "model": args.model,
            "threads": args.threads,
            "machine": _machine(),
            "read_bandwidth_gb_s": bench.bandwidth / 1e9,
            "float32_peak_gflop_s": bench.flops / 1e9,
            "product_peak_gop_s": bench.product_rate / 1e9,
            "repeats": args.repeats,
            "figures": [asdict(f) for f in figures],
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")


def _machine() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
