"""Rounds of ours and peers in turn, and what comes of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cpu.floors import LEAST_RATIO, LEAST_SHARE, Limits, ModelShape, share_of
from benchmarks.cpu.memory import growth
from benchmarks.cpu.metrics import UNITS, median_of, median_ratio, spread
from benchmarks.cpu.quiet import QUIET, CpuTimes, wait_until_quiet
from benchmarks.cpu.spawn import ChildError, Peer, run_child
from benchmarks.cpu.workloads import make_workloads, write_json

OURS = "inferx"
Figure = dict[str, Any]


@dataclass
class Contest:
    """model, threads, options: of our engine.  runs: by workload, then engine; an entry a round, None where
    it failed.  errors: what failures said."""

    model: str
    threads: int
    names: Sequence[str]
    peers: Sequence[Peer] = ()
    options: dict[str, Any] = field(default_factory=dict)
    quiet_seconds: float = 8.0
    timeout: float = 1800.0
    runs: dict[str, dict[str, list[Figure | None]]] = field(default_factory=dict)
    parts: list[list[float]] = field(default_factory=list)  # of W6, a pair a round
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engines = [OURS, *(peer.name for peer in self.peers)]
        if len(set(self.engines)) < len(self.engines):
            raise ValueError(f"engines need names of their own, got {', '.join(self.engines)}")
        self.runs = {name: {engine: [] for engine in self.engines} for name in self.names}

    def round(self, number: int, report: Callable[[str], None] = print) -> None:
        """Every workload once with every engine; who begins changes from round to round."""
        with tempfile.TemporaryDirectory() as folder:
            workloads = Path(folder) / "workloads.json"
            write_json(workloads)
            for name in self.names:
                first = number % len(self.engines)
                for engine in self.engines[first:] + self.engines[:first]:
                    figure = self._one(name, engine, workloads)
                    self.runs[name][engine].append(figure)
                    report(_line(number, name, engine, figure, self.errors))
        if "W6" in self.names:
            try:
                self.parts.append(run_child(self._order("prefix_parts"), self.timeout)["parts"])
            except ChildError as error:
                self.errors.append(f"{OURS} W6 in its parts: {error}")

    def _order(self, task: str) -> dict[str, Any]:
        return {"task": task, "model": self.model, "threads": self.threads, "options": self.options}

    def _one(self, name: str, engine: str, workloads: Path) -> Figure | None:
        wait_until_quiet(self.quiet_seconds)
        before = CpuTimes.now()
        try:
            if engine == OURS:
                figure = run_child({**self._order("workload"), "workload": name}, self.timeout)
            else:
                peer = next(p for p in self.peers if p.name == engine)
                figure = peer.run(
                    name, self.model, self.threads, workloads, unit=UNITS[name], timeout=self.timeout
                )
        except ChildError as error:
            self.errors.append(f"{engine} {name}: {error}")
            return None
        figure["other_cores"] = CpuTimes.now().others_since(before)
        return figure

    @property
    def complete(self) -> bool:
        """Every run of ours came to its end."""
        return not any(error.startswith(OURS) for error in self.errors)

    def check_answers(self) -> None:
        """The same tokens in every round: RuntimeError otherwise."""
        for name, engines in self.runs.items():
            digests = {f["digest"] for f in engines[OURS] if f is not None}
            if len(digests) > 1:
                raise RuntimeError(f"{name}: runs of the same requests gave different tokens")

    def results(self, limits: Limits) -> dict[str, Any]:
        """By workload: medians, ratios to each peer, floor and share, and the runs themselves."""
        return {name: self._result(name, limits) for name in self.names if self._ran(name)}

    def _ran(self, name: str) -> bool:
        return any(figure is not None for figure in self.runs[name][OURS])

    def _result(self, name: str, limits: Limits) -> dict[str, Any]:
        runs = self.runs[name]
        ours = [figure for figure in runs[OURS] if figure is not None]
        median: Figure = {key: median_of(ours, key) for key in ("value", "wall", "ttft")}
        parts = list(self.parts) if name == "W6" else []
        alone = [median_of([{"s": p[i]} for p in parts], "s") or 0.0 for i in (0, 1)] if parts else []
        requests = make_workloads()[name]
        shape = ModelShape.from_dict(ours[0]["shape"])
        peers = {}
        for peer in self.engines[1:]:
            values = [None if f is None else f["value"] for f in runs[peer]]
            known = [v for v in values if v is not None]
            peers[peer] = {
                "value": median_of(runs[peer], "value"),
                "ttft": median_of(runs[peer], "ttft"),
                "spread": spread(known),
                "ratio": median_ratio(name, [None if f is None else f["value"] for f in runs[OURS]], values),
                "runs": runs[peer],
            }
        share = share_of(name, requests, shape, limits, median, alone)
        ratios = [p["ratio"] for p in peers.values() if p["ratio"] is not None]
        return {
            "unit": UNITS[name],
            **median,
            "spread": spread([f["value"] for f in ours]),
            "disturbed_runs": sum(f["other_cores"] > QUIET for f in ours),
            "least_ratio": min(ratios) if ratios else None,
            "floor": share,
            "bars": _bars(name, share["share"], min(ratios) if ratios else None),
            "peers": peers,
            **({"parts_s": alone} if alone else {}),
            "runs": [{k: v for k, v in f.items() if k not in ("shape", "quantised")} for f in ours],
        }

    def about(self) -> dict[str, Any]:
        """Of our engine: times to load, memory, what is quantised."""
        ours = [f for engines in self.runs.values() for f in engines[OURS] if f is not None]
        loads = [f["load"] for f in ours]
        grown = [growth(f["memory"]) for f in ours]
        return {
            "load_s": median_of(loads, "load_s"),
            "construct_s": median_of(loads, "construct_s"),
            "load_with_imports_s": median_of(loads, "load_with_imports_s"),
            "memory": {
                "after_imports": ours[0]["memory"]["after_imports"]["resident"],
                "peak": max(f["memory"]["at_end"]["peak"] for f in ours),
                "growth_after_load": median_of(grown, "after_load"),
                "growth_at_end": max(g["end"] or 0.0 for g in grown),
                "growth_peak": max(g["peak"] or 0.0 for g in grown),
                "growth_without_kv": max(g["without_kv"] or 0.0 for g in grown),
                "growth_allowed": grown[0]["allowed"],
                "file_bytes": ours[0]["memory"]["file_bytes"],
                "weight_bytes": ours[0]["memory"]["weight_bytes"],
                "kv_pool_bytes": ours[0]["memory"]["kv_pool_bytes"],
            },
            "quantised": ours[0]["quantised"],
            "shape": ours[0]["shape"],
        }


def _bars(name: str, share: float | None, ratio: float | None) -> dict[str, bool]:
    """Which of the bars of this workload are met; those that were not measured are left out."""
    bars = {}
    if share is not None and name in LEAST_SHARE:
        bars["share"] = share >= LEAST_SHARE[name]
    if ratio is not None:
        bars["ratio"] = ratio >= LEAST_RATIO
    return bars


def _line(number: int, name: str, engine: str, figure: Figure | None, errors: list[str]) -> str:
    head = f"round {number + 1} {name} {engine:16}"
    if figure is None:
        return f"{head} failed: {errors[-1]}"
    noise = f"  ({figure['other_cores']:.1f} cores used by others)" if figure["other_cores"] > QUIET else ""
    return f"{head} {figure['value']:10.2f} {UNITS[name]}{noise}"
