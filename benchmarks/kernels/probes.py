"""The limits that kernels are held against, measured on this machine with a few lines of C++."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

_TARGETS = {"v4": ["-mavx512f", "-mprefer-vector-width=512"], "v3": ["-mavx2", "-mfma"], "base": []}


def target_flags(simd_target: str, cpu_flags: str) -> list[str]:
    """Of the compiler.  cpu_flags: as /proc/cpuinfo has them; targets of later kinds (v4vnni) begin with the
    name of the one that they extend."""
    known = next((name for name in _TARGETS if simd_target.startswith(name)), "base")
    vnni = ["-mavx512vnni"] if known == "v4" and "avx512_vnni" in cpu_flags.split() else []
    return _TARGETS[known] + vnni


def _cpu_flags() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")


def seconds(
    run: Callable[[], object], samples: int = 7, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The median time of ``samples`` runs after one to warm up.

    On a machine that others use too, ``clock=time.process_time`` gives figures of one thread that still mean
    something.
    """
    run()
    times = []
    for _ in range(samples):
        start = clock()
        run()
        times.append(clock() - start)
    return sorted(times)[len(times) // 2]


class Probes:
    """Compiled for one instruction set (as ``build_info()["simd_target"]``).

    The best of several samples, since a limit is what can be reached: another process that takes a core for a
    moment must not lower it.
    """

    def __init__(self, simd_target: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "probes.so"
            source = Path(__file__).with_name("probes.cpp")
            flags = ["-O3", "-shared", "-fPIC", "-fopenmp", "-ffp-contract=fast"]
            flags += target_flags(simd_target, _cpu_flags())
            subprocess.run(
                [os.environ.get("CXX", "c++"), *flags, str(source), "-o", str(library)], check=True
            )
            self._library = ctypes.CDLL(str(library))
        self._memory = torch.ones(256 << 20, dtype=torch.uint8)

    def read_bandwidth(self, threads: int) -> float:
        """Bytes per second read from memory (256 MB, beyond any cache here)."""
        arguments = (ctypes.c_void_p(self._memory.data_ptr()), ctypes.c_int64(self._memory.nbytes), threads)
        return self._memory.nbytes / self._best(lambda: self._library.read_all(*arguments))

    def flops(self, threads: int) -> float:
        """Floating-point operations per second (two per multiply-add), float32."""
        rounds = 2_000_000
        operations = 2 * rounds * self._library.multiply_adds_per_round() * threads
        return operations / self._best(lambda: self._library.multiply_add(ctypes.c_int64(rounds), threads))

    def int8_operations(self, threads: int) -> float | None:
        """The same (two per multiply-add) of 8-bit integers, summed in 32 bits; None without such
        instructions."""
        rounds = 2_000_000
        operations = 2 * rounds * self._library.int8_products_per_round() * threads
        if not operations:
            return None
        return operations / self._best(lambda: self._library.int8_dot(ctypes.c_int64(rounds), threads))

    def _best(self, run: Callable[[], object]) -> float:
        run()
        times = []
        for _ in range(15):
            start = self._clock()
            run()
            times.append(self._clock() - start)
        return min(times)
