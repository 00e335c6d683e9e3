"""Times ``ops.linear`` and prints the share of what the machine can do.

    OMP_NUM_THREADS=2 GOMP_SPINCOUNT=2000 python -m benchmarks.kernels.linear [--dtype Q4_1] [--rows 1 4]

The limit of a call is the larger of packed bytes / read bandwidth and operations / multiply-add peak, both
measured here.  Every call takes another copy of the weight until ``--cold`` MB have gone by, as a model's
layers do, so that the weights of small matrices come from memory and not from the cache.  Times are medians
and hold Python's part.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable

import torch
from benchmarks.kernels.probes import Probes, seconds

from inferx import ops

BLOCK_BYTES = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SMOLLM2_SHAPES = ((576, 576), (192, 576), (1536, 576), (576, 1536), (49152, 576))


def random_weight(dtype: str, n: int, k: int) -> ops.PackedWeight:
    """A packed weight of random bits; speed does not depend on the values."""
    if dtype in FLOATS:
        return ops.pack_weight(torch.randn(n, k).to(FLOATS[dtype]), dtype, (n, k))
    block, size = BLOCK_BYTES[dtype]
    data = torch.randint(0, 64, (n, k // block * size), dtype=torch.uint8)
    return ops.pack_weight(data, dtype, (n, k))


def run(
    dtype: str, n: int, k: int, rows: int, cold_bytes: int, samples: int, clock: Callable[[], float]
) -> tuple[float, int]:
    """Seconds per call and the packed size."""
    first = random_weight(dtype, n, k)
    copies = max(1, math.ceil(cold_bytes / first.nbytes)) if rows <= 16 else 1
    weights = [first, *(random_weight(dtype, n, k) for _ in range(copies - 1))]
    x, out = torch.randn(rows, k), torch.empty(rows, n)
    turn = itertools.cycle(weights)
    once = seconds(lambda: ops.linear(x, next(turn), None, out), 3)
    calls = max(1, min(copies, int(0.05 / once)))

    def batch() -> None:
        for _ in range(calls):
            ops.linear(x, next(turn), None, out)

    return seconds(batch, samples, clock) / calls, first.nbytes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", nargs="+", default=["Q4_1", "Q8_0"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16, 64, 512])
    parser.add_argument("--shape", nargs="+", help="N,K", default=[f"{n},{k}" for n, k in SMOLLM2_SHAPES])
    parser.add_argument("--threads", type=int, default=ops.get_num_threads())
    parser.add_argument("--cold", type=int, default=128, help="MB of weights between two uses of one")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument(
        "--cpu-time", action="store_true", help="processor time: one thread on a machine in use by others"
    )
    arguments = parser.parse_args()
    if arguments.cpu_time and arguments.threads != 1:
        parser.error("--cpu-time needs --threads 1")
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    ops.set_num_threads(arguments.threads)
    torch.manual_seed(0)

    target = ops.build_info()["simd_target"]
    probes = Probes(target, clock)
    before = probes.read_bandwidth(arguments.threads), probes.flops(arguments.threads)
    measured = []
    for dtype, shape, rows in itertools.product(arguments.dtype, arguments.shape, arguments.rows):
        n, k = map(int, shape.split(","))
        took, nbytes = run(dtype, n, k, rows, arguments.cold << 20, arguments.samples, clock)
        measured.append((dtype, n, k, rows, took, nbytes))
    # Again, as a limit is the best that was seen: the machine may have been busy at the beginning.
    after = probes.read_bandwidth(arguments.threads), probes.flops(arguments.threads)
    bandwidth, flops = map(max, before, after)

    print(f"{target}, {arguments.threads} threads: {bandwidth / 1e9:.1f} GB/s, {flops / 1e9:.0f} GFLOP/s")
    print("dtype       N     K    M        us   GB/s  GFLOP/s  limit us  share")
    above = []
    for dtype, n, k, rows, took, nbytes in measured:
        operations = 2 * rows * n * k
        limit = max(nbytes / bandwidth, operations / flops)
        line = (
            f"{dtype:6} {n:6} {k:5} {rows:4} {took * 1e6:9.1f} {nbytes / took / 1e9:6.1f} "
            f"{operations / took / 1e9:8.1f} {limit * 1e6:9.1f} {limit / took:6.0%}"
        )
        if limit > took:
            above.append(line)
        print(line)
    if above:
        raise SystemExit("Not credible, faster than the measured limit:\n" + "\n".join(above))


if __name__ == "__main__":
    main()
