"""Times ``ops.paged_attention`` and prints the share of what the machine can do.

    OMP_NUM_THREADS=2 GOMP_SPINCOUNT=2000 python -m benchmarks.kernels.paged_attention [--heads 9,3,64 ...]

The limit of a call is the larger of keys and values read once / read bandwidth and multiply-adds of the
visible scores / multiply-add peak, both measured here.  Decode calls take other blocks each time, ``--cold``
MB of them before one comes round again, as a model's layers do.  Times are medians and hold Python's part.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from benchmarks.kernels.probes import Probes, seconds

from inferx import ops

BLOCK = 16
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype
    head_major: bool

    def cache(self, blocks: int) -> torch.Tensor:
        """Logically [blocks, BLOCK, kv_heads, dim]."""
        sizes = (self.kv_heads, BLOCK) if self.head_major else (BLOCK, self.kv_heads)
        cache = torch.empty(blocks, *sizes, self.dim, dtype=self.dtype)
        cache = cache.uniform_(-1, 1) if self.dtype == torch.float32 else cache.fill_(0.5)
        return cache.transpose(1, 2) if self.head_major else cache

    def block_bytes(self) -> int:
        return 2 * BLOCK * self.kv_heads * self.dim * self.dtype.itemsize


def time_call(
    shape: Shape,
    requests: int,
    context: int,
    tokens: int,
    cold_bytes: int,
    samples: int,
    clock: Callable[[], float],
) -> tuple[float, float, float]:
    """Seconds per call, bytes of keys and values read, floating-point operations."""
    per_request = math.ceil(context / BLOCK)
    needed = requests * per_request
    copies = max(1, math.ceil(cold_bytes / (needed * shape.block_bytes())))
    key_cache, value_cache = shape.cache(copies * needed), shape.cache(copies * needed)
    order = torch.randperm(copies * needed).to(torch.int32).view(copies, requests, per_request)
    cu_seqlens_q = torch.arange(requests + 1, dtype=torch.int32) * tokens
    seq_lens = torch.full((requests,), context, dtype=torch.int32)
    query = torch.randn(requests * tokens, shape.heads, shape.dim)
    out = torch.empty_like(query)
    tables = itertools.cycle(order.unbind(0))

    def call() -> None:
        ops.paged_attention(
            query, key_cache, value_cache, next(tables), cu_seqlens_q, seq_lens, shape.dim**-0.5, out=out
        )

    once = seconds(call, 3, clock)
    calls = max(1, min(copies, int(0.05 / once)))

    def batch() -> None:
        for _ in range(calls):
            call()

    visible = tokens * context - tokens * (tokens - 1) // 2  # scores per head
    operations = 4.0 * requests * shape.heads * shape.dim * visible
    return (
        seconds(batch, samples, clock) / calls,
        requests * context * shape.block_bytes() / BLOCK,
        operations,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--heads", nargs="+", help="query heads,KV heads,head_dim", default=["9,3,64", "32,8,128"]
    )
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--context", nargs="+", type=int, default=[128, 1024, 8192])
    parser.add_argument("--prefill", nargs="+", type=int, default=[2000], help="prompt lengths, one request")
    parser.add_argument("--threads", type=int, default=ops.get_num_threads())
    parser.add_argument("--cold", type=int, default=128, help="MB of blocks between two uses of one")
    parser.add_argument("--max-mb", type=int, default=1200, help="leave out larger caches")
    parser.add_argument("--head-major", action="store_true", help="blocks as [heads, tokens, head_dim]")
    parser.add_argument("--cpu-time", action="store_true", help="for one thread on a machine in use")
    parser.add_argument("--samples", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.cpu_time and arguments.threads != 1:
        parser.error("--cpu-time adds up the time of all threads: it needs --threads 1")
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    ops.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    target = ops.build_info()["simd_target"]
    probes = Probes(target, clock)
    bandwidth, flops = probes.read_bandwidth(arguments.threads), probes.flops(arguments.threads)
    print(
        f"{target}, {arguments.threads} threads: reads {bandwidth / 1e9:.1f} GB/s, {flops / 1e9:.0f} GFLOP/s"
    )
    print(f"{'heads':9} {'cache':5} {'requests':>8} {'queries':>7} {'context':>7} {'us':>10} {'GB/s':>6} "
          f"{'GFLOP/s':>8} {'limit us':>9} {'share':>6}")  # fmt: skip
    above = []
    decodes = [(n, length, 1) for n in arguments.requests for length in arguments.context]
    for heads, dtype, (requests, context, tokens) in itertools.product(
        arguments.heads, arguments.dtype, [*decodes, *((1, n, n) for n in arguments.prefill)]
    ):
        shape = Shape(*map(int, heads.split(",")), DTYPES[dtype], arguments.head_major)
        if requests * context * shape.block_bytes() / BLOCK > arguments.max_mb * 1e6:
            continue
        cold = arguments.cold * 1_000_000 if tokens == 1 else 0
        elapsed, size, operations = time_call(
            shape, requests, context, tokens, cold, arguments.samples, clock
        )
        limit = max(size / bandwidth, operations / flops)
        print(f"{heads:9} {dtype:5} {requests:8} {tokens:7} {context:7} {elapsed * 1e6:10.1f} "
              f"{size / elapsed / 1e9:6.1f} {operations / elapsed / 1e9:8.1f} {limit * 1e6:9.1f} "
              f"{limit / elapsed:6.1%}", flush=True)  # fmt: skip
        if elapsed < limit:
            above.append((heads, dtype, requests, tokens, context))
    if above:
        raise SystemExit(f"faster than the measured limit, so the measurement is wrong: {above}")


if __name__ == "__main__":
    main()
