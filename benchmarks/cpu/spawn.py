"""Child processes: ours (``child.py``) and those of peers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class ChildError(RuntimeError):
    """A child that ended without a result; the message has the end of what it printed."""


def run_child(order: dict[str, Any], timeout: float = 1800.0) -> dict[str, Any]:
    """Carry out ``order`` in a fresh process of ours."""
    command = [sys.executable, "-m", "benchmarks.cpu.child"]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    order = {**order, "started": time.monotonic()}
    return _run([*command, json.dumps(order)], timeout, env=env, cwd=ROOT)


@dataclass(frozen=True)
class Peer:
    """Another engine.  command: a shell-like command line with the placeholders {workload} (W1..W6),
    {workloads} (a JSON file with the token ids), {model} and {threads}; it prints one JSON line."""

    name: str
    command: str

    @classmethod
    def parse(cls, text: str) -> Peer:
        """From NAME=COMMAND."""
        name, separator, command = text.partition("=")
        if not separator or not name.strip() or not command.strip():
            raise ValueError(f"--peer: expected NAME=COMMAND, got {text!r}")
        return cls(name.strip(), command.strip())

    def arguments(self, workload: str, model: str, threads: int, workloads: Path) -> list[str]:
        values = {
            "{workload}": workload,
            "{workloads}": str(workloads),
            "{model}": model,
            "{threads}": str(threads),
        }
        words = shlex.split(self.command)
        for placeholder, value in values.items():
            words = [word.replace(placeholder, value) for word in words]
        return words

    def run(
        self, workload: str, model: str, threads: int, workloads: Path, *, unit: str, timeout: float
    ) -> dict[str, Any]:
        """The peer's figure; ChildError when it failed, or reports another unit."""
        figure = _run(self.arguments(workload, model, threads, workloads), timeout)
        value = figure.get("value")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise ChildError(f"{self.name} {workload}: expected a value above 0, got {value!r}")
        if figure.get("unit") != unit:
            raise ChildError(f"{self.name} {workload}: expected {unit!r}, got {figure.get('unit')!r}")
        return figure


def _run(arguments: list[str], timeout: float, **options: Any) -> dict[str, Any]:
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout, **options)
    except subprocess.TimeoutExpired:
        raise ChildError(f"no result within {timeout:.0f} s") from None
    except OSError as error:
        raise ChildError(f"{arguments[0]}: {error.strerror}") from None
    if done.returncode:
        raise ChildError(f"exit code {done.returncode}: {_tail(done.stderr or done.stdout)}")
    return parse_result(done.stdout)


def parse_result(output: str) -> dict[str, Any]:
    """The last line that is a JSON object; engines like to print other things too."""
    for line in reversed(output.splitlines()):
        if line.lstrip().startswith("{"):
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                return value
    raise ChildError(f"no JSON line in the output: {_tail(output)}")


def _tail(text: str) -> str:
    return text.strip()[-600:] or "(nothing was printed)"
