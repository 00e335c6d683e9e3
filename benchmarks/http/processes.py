"""The processes of the benchmark, and the processor time that each has used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parents[2]


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def child_of(pid: int, name: str) -> int:
    """The child of ``pid`` whose command line holds ``name``."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if name in Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace"):
                return int(child)
    raise RuntimeError(f"process {pid} has no child {name}")


class Worker:
    """``python -m MODULE ARGUMENTS``, which answers each JSON line on its standard input with another."""

    def __init__(self, module: str, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args}: ended with code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


class Server:
    """``inferx serve`` on a free port."""

    def __init__(self, model: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "inferx.cli.main", "serve", model, "--port", "0", *arguments],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if line.startswith("inferx serves "):
                self.port = int(line.split()[2].rpartition(":")[2])
                break
        else:
            raise RuntimeError(f"the server ended with code {self.process.wait()}: {''.join(lines)}")
        # A full pipe would stop it.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.engine_pid = child_of(self.pid, "inferx.engine.process")

    @property
    def pid(self) -> int:
        return self.process.pid

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
