"""The few figures of a guidellm report that are worth keeping; fails when a request failed:

python guidellm_summary.py REPORT SUMMARY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def spread(metric: dict[str, Any]) -> dict[str, float]:
    """Of the requests that succeeded."""
    values = metric["successful"]
    return {
        "mean": round(values["mean"], 3),
        "p50": round(values["percentiles"]["p50"], 3),
        "p95": round(values["percentiles"]["p95"], 3),
    }


def main(report: str, summary: str) -> int:
    (benchmark,) = json.loads(Path(report).read_text())["benchmarks"]
    metrics = benchmark["metrics"]
    totals = metrics["request_totals"]
    result = {
        "tool": "guidellm",
        "requests": {name: totals[name] for name in ("successful", "errored", "incomplete")},
        "time_to_first_token_ms": spread(metrics["time_to_first_token_ms"]),
        "inter_token_latency_ms": spread(metrics["inter_token_latency_ms"]),
        "request_seconds": spread(metrics["request_latency"]),
        "output_tokens_per_request": spread(metrics["output_token_count"]),
        "prompt_tokens_per_request": spread(metrics["prompt_token_count"]),
        "output_tokens_per_second": spread(metrics["output_tokens_per_second"]),
    }
    Path(summary).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 1 if totals["errored"] or not totals["successful"] else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
