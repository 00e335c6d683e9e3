"""What a record says about where it was made."""

from __future__ import annotations

import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.cpu.floors import Limits
from benchmarks.cpu.spawn import ROOT, run_child


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines}
    name = found.get("model name") or found.get("CPU part") or platform.machine()
    if "cpu family" in found:  # a cloud's "AMD EPYC" says little without them
        name += f" (family {found['cpu family']}, model {found.get('model', '?')})"
    return name


def commit() -> str:
    """Of this checkout; "+" behind it when files that git knows have changed since."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    name = git("rev-parse", "--short=12", "HEAD")
    if not name:
        return "unknown"
    return name + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            return int(line.split()[1]) * 1024
    return 0


class Machine:
    """The limits are the best of several measurements, since a limit is what can be reached."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._found: list[dict[str, Any]] = []

    def probe(self) -> None:
        """Measure the limits (again)."""
        self._found.append(run_child({"task": "limits", "threads": self.threads}))

    @property
    def limits(self) -> Limits:
        return Limits(
            bandwidth=max(f["bandwidth"] for f in self._found),
            float32=max(f["float32"] for f in self._found),
            int8=max(f["int8"] or 0.0 for f in self._found) or None,
        )

    def describe(self) -> dict[str, Any]:
        limits = self.limits
        return {
            "cpu": cpu_name(),
            "instruction_set": self._found[0]["simd_target"],
            "threads": self.threads,
            "memory_bytes": memory_bytes(),
            "read_bandwidth_gb_s": limits.bandwidth / 1e9,
            "float32_peak_gflop_s": limits.float32 / 1e9,
            "int8_peak_gop_s": None if limits.int8 is None else limits.int8 / 1e9,
            "probes": len(self._found),
            "build": self._found[0]["build"],
            "python": platform.python_version(),
            "kernel": platform.release(),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commit": commit(),
        }
