"""The clock and the limits of a CPU and of a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from benchmarks.kernels.case import Call
from benchmarks.kernels.probes import Probes

from inferx import ops

# Bytes per second that the data sheets give; printed beside what was measured.
SPEC_BANDWIDTH = {
    "H200": 4.8e12,
    "H100": 3.35e12,
    "A100": 2.039e12,
    "B200": 8.0e12,
    "L40S": 0.864e12,
    "4090": 1.008e12,
}


@dataclass(frozen=True)
class Limits:
    """Of the machine, measured in this run: bytes per second read or copied, float operations per second on
    plain arithmetic and on tensor cores, and the data sheet's bandwidth (0: unknown)."""

    bandwidth: float
    flops: float
    tensor_flops: float
    spec_bandwidth: float = 0.0

    def best_of(self, other: Limits) -> Limits:
        return Limits(
            *(max(a, b) for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True))
        )

    def seconds(self, nbytes: float, operations: float, tensor_cores: bool) -> float:
        """The floor of a call."""
        rate = self.tensor_flops if tensor_cores else self.flops
        return max(nbytes / self.bandwidth, operations / rate)


def _median(run: Callable[[], float], samples: int) -> tuple[float, float]:
    """Median and relative spread (half the interquartile range) of ``samples`` runs."""
    times = sorted(run() for _ in range(samples))
    middle = statistics.median(times)
    return middle, (times[3 * len(times) // 4] - times[len(times) // 4]) / 2 / middle


class CpuMachine:
    """Wall-clock time; limits from ``probes.cpp``."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        ops.set_num_threads(threads)
        torch.set_num_threads(threads)
        self._probes = Probes(ops.build_info()["simd_target"])
        self.name = f"{_cpu_name()}, {threads} threads"

    def limits(self) -> Limits:
        flops = self._probes.flops(self.threads)
        # Reading and writing the same lines can move more bytes than reading alone does.
        floats = torch.ones(64 << 20)
        updated = min(self.time([lambda: floats.add_(0.0)], 5)[0] for _ in range(3))
        bandwidth = max(self._probes.read_bandwidth(self.threads), 2 * floats.nbytes / updated)
        return Limits(bandwidth, flops, flops)

    def time(self, calls: list[Call], samples: int) -> tuple[float, float]:
        """Seconds of one call (median), and the spread."""
        calls[0]()
        start = time.perf_counter()
        for call in calls:
            call()
        once = (time.perf_counter() - start) / len(calls)
        rounds = max(1, int(0.03 / max(once * len(calls), 1e-7)))

        def run() -> float:
            start = time.perf_counter()
            for _ in range(rounds):
                for call in calls:
                    call()
            return (time.perf_counter() - start) / (rounds * len(calls))

        return _median(run, samples)


class CudaMachine:
    """Device time of a captured graph of the calls, by events: no launch overhead of Python in it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.name = torch.cuda.get_device_name(device)

    def limits(self) -> Limits:
        count = 1 << 30
        source = torch.ones(count, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        floats = source.view(torch.float32)
        copied = 2 * count / self.time([lambda: target.copy_(source)], 9)[0]
        read = count / self.time([lambda: floats.sum()], 9)[0]
        spec = next((value for key, value in SPEC_BANDWIDTH.items() if key in self.name), 0.0)
        plain = self._matmul(torch.float32, 4096)
        return Limits(max(copied, read), plain, self._matmul(torch.bfloat16, 8192), spec)

    def _matmul(self, dtype: torch.dtype, n: int) -> float:
        a, b = (torch.randn(n, n, device=self.device, dtype=torch.float32).to(dtype) for _ in range(2))
        return 2 * n**3 / self.time([lambda: a @ b], 9)[0]

    def time(self, calls: list[Call], samples: int) -> tuple[float, float]:
        """Seconds of one call (median), and the spread."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for call in calls:
                call()
        stream.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        replay = self._captured(calls)
        replay()
        torch.cuda.synchronize(self.device)

        def run() -> float:
            start.record()
            replay()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1e3 / (len(calls) * repeats)

        repeats = 1
        rounds = max(1, int(2e-3 / max(run(), 1e-7)))
        if rounds > 1:
            once, repeats = replay, rounds

            def replay() -> None:
                for _ in range(rounds):
                    once()

        return _median(run, samples)

    def _captured(self, calls: list[Call]) -> Callable[[], None]:
        """A replay of the calls; plain calls where one of them cannot be captured."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for call in calls:
                    call()
        except RuntimeError:
            torch.cuda.synchronize(self.device)
            return lambda: next(call() for call in calls) and None
        return graph.replay


def _cpu_name() -> str:
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown CPU"
