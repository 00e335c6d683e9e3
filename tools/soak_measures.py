"""What the soak reads of the server from outside: memory, descriptors, threads, metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

MIB = 1 << 20
# Memory counts as flat when the straight line through it after the warm-up rises, over the whole rest, by
# less than this.  Allocators keep what they were once asked for, so a little is no leak; a leak of some
# kilobytes per request is seen within half an hour.
FLAT_MIB = 6.0
FLAT_SHARE = 0.01
WARM_UP_SHARE = 1 / 3
# A short run is still warming up; only what would fill the memory shows there.
SETTLED_SECONDS = 300.0
UNSETTLED_MIB = 40.0


@dataclass
class Series:
    """One process over time.  seconds since the start; rss in MiB."""

    seconds: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def trend(self) -> dict[str, float | bool]:
        """Slope by least squares after the warm-up, and whether it counts as flat."""
        t, y = np.asarray(self.seconds), np.asarray(self.rss)
        late = t >= t[0] + (t[-1] - t[0]) * WARM_UP_SHARE
        t, y = t[late], y[late]
        if len(t) < 5:
            raise ValueError(f"a trend needs at least 5 samples after the warm-up, got {len(t)}")
        slope = float(np.polyfit(t - t[0], y, 1)[0])
        rise = slope * float(t[-1] - t[0])
        limit = FLAT_MIB + FLAT_SHARE * float(y.mean())
        if t[-1] - t[0] < SETTLED_SECONDS:
            limit = UNSETTLED_MIB
        return {
            "mib_per_hour": slope * 3600,
            "rise_mib": rise,
            "limit_mib": limit,
            "window_seconds": float(t[-1] - t[0]),
            "first_mib": float(y[0]),
            "last_mib": float(y[-1]),
            "flat": rise <= limit,
        }

    def as_dict(self, points: int = 60) -> dict[str, Any]:
        step = max(1, len(self.seconds) // points)
        return {
            "seconds": [round(v, 1) for v in self.seconds[::step]],
            "rss_mib": [round(v, 1) for v in self.rss[::step]],
            "fds": self.fds[::step],
            "threads": self.threads[::step],
        }


class Processes:
    """The server and its engine process."""

    def __init__(self, server_pid: int) -> None:
        self.server = psutil.Process(server_pid)
        engines = [p for p in self.server.children() if "inferx.engine.process" in p.cmdline()]
        if len(engines) != 1:
            raise RuntimeError(f"expected one engine process, found {len(engines)}")
        self.engine = engines[0]
        self.series = {"server": Series(), "engine": Series()}
        self._started = time.monotonic()

    def sample(self) -> None:
        now = time.monotonic() - self._started
        for name, process in (("server", self.server), ("engine", self.engine)):
            series = self.series[name]
            series.seconds.append(now)
            series.rss.append(process.memory_info().rss / MIB)
            series.fds.append(process.num_fds())
            series.threads.append(process.num_threads())

    def counts(self) -> dict[str, int]:
        return {
            "server_fds": self.server.num_fds(),
            "server_threads": self.server.num_threads(),
            "engine_fds": self.engine.num_fds(),
            "engine_threads": self.engine.num_threads(),
            "children": len(self.server.children(recursive=True)),
        }


def parse_metrics(text: str) -> dict[str, float]:
    """name -> value, summed over labels other than the model's."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name = line.partition("{")[0] if "{" in line else line.split()[0]
            values[name] = values.get(name, 0.0) + float(line.rsplit(None, 1)[1])
    return values


def idle_faults(metrics: dict[str, float]) -> list[str]:
    """What is not as it must be when nobody asks for anything; empty when all is."""
    faults = []
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
        if metrics[name] != 0:
            faults.append(f"{name} is {metrics[name]:g}")
    free, blocks = metrics["inferx:num_free_kv_blocks"], metrics["inferx:num_kv_blocks"]
    if free != blocks:
        faults.append(f"{free:g} blocks of {blocks:g} are free or cached")
    return faults
