"""From raw times to the figure of a workload, and from figures to ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cpu.workloads import Workload, output_tokens, prompt_tokens

UNITS = {
    "W1": "decode tok/s",
    "W2": "output tok/s",
    "W3": "output tok/s",
    "W4": "prompt tok/s",
    "W5": "total tok/s",
    "W6": "seconds",
}


def summarize(
    name: str, requests: Workload, wall: float, ttft: float, decode_seconds: float | None = None
) -> dict[str, Any]:
    """The figure of one run.

    wall: seconds from handing in the requests to the last token.  ttft: to the first token of all.
    decode_seconds: from the first token to the last, where known exactly.
    W1 counts the tokens after the first over the time after the first; W2 and W3 the output tokens, W4 the
    prompt's and W5 both, over the wall time; W6 is the wall time itself.
    """
    if wall <= 0 or ttft < 0 or ttft > wall:
        raise ValueError(f"{name}: expected 0 <= ttft <= wall and wall > 0, got ttft {ttft}, wall {wall}")
    prompts, outputs = prompt_tokens(requests), output_tokens(requests)
    figure: dict[str, Any] = {"unit": UNITS[name], "wall": wall, "ttft": ttft}
    if name == "W1":
        seconds = wall - ttft if decode_seconds is None else decode_seconds
        figure |= {"value": (outputs - 1) / seconds, "decode_seconds": seconds}
    elif name in ("W2", "W3"):
        figure["value"] = outputs / wall
    elif name == "W4":
        figure |= {"value": prompts / wall, "ttft": wall}
    elif name == "W5":
        figure |= {"value": (prompts + outputs) / wall, "output_rate": outputs / wall}
    else:
        figure["value"] = wall
    return figure


def ratio(name: str, ours: float, theirs: float) -> float:
    """How many times faster we are: rates ours over theirs, seconds the other way round."""
    return theirs / ours if UNITS[name] == "seconds" else ours / theirs


def median_ratio(name: str, ours: Sequence[float | None], theirs: Sequence[float | None]) -> float | None:
    """The median of the ratios of each round; rounds in which one of both failed are left out."""
    if len(ours) != len(theirs):
        raise ValueError(f"{name}: {len(ours)} rounds of ours, {len(theirs)} of the peer")
    both = [ratio(name, a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    return statistics.median(both) if both else None


def median_of(runs: Sequence[Mapping[str, Any] | None], key: str) -> float | None:
    """Of a figure over runs; None where no run has it."""
    values = [run[key] for run in runs if run is not None and run.get(key) is not None]
    return statistics.median(values) if values else None


def spread(values: Sequence[float]) -> float:
    """Half the distance of the extreme values, relative to the median."""
    return (max(values) - min(values)) / 2 / statistics.median(values) if values else 0.0
