"""Results as a table in Markdown, which reads well in a terminal too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MISSING = "–"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head; columns after the first are set to the right."""
    widths = [max(3, *(len(row[i]) for row in rows)) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "| " + " | ".join(cells) + " |"

    rule = (
        "|" + "|".join("-" * (w + 2) if i == 0 else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    )
    return "\n".join([line(rows[0]), rule, *(line(row) for row in rows[1:])])


def number(value: float | None, digits: int = 1) -> str:
    if value is None:
        return _MISSING
    return f"{value:,.{digits}f}" if abs(value) < 100 else f"{value:,.0f}"


def times(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.2f} ×"


def percent(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.0%}"


def mebibytes(value: float | None) -> str:
    return _MISSING if value is None else f"{value / 2**20:,.0f} MiB"


def workload_table(results: Mapping[str, Any], peers: Sequence[str]) -> str:
    """A line a workload: ours, each peer with its ratio, the floor and the share."""
    head = ["workload", "unit", "inferx", "±", "ttft s"]
    for peer in peers:
        head += [peer, "ratio"]
    rows = [[*head, "bound by", "floor ms", "share", "bars"]]
    for name, result in results.items():
        floor = result["floor"]
        row = [
            name,
            result["unit"],
            number(result["value"]),
            percent(result["spread"]),
            number(result["ttft"], 3),
        ]
        for peer in peers:
            theirs = result["peers"].get(peer, {})
            row += [number(theirs.get("value")), times(theirs.get("ratio"))]
        missed = [bar for bar, met in result["bars"].items() if not met]
        verdict = _MISSING if not result["bars"] else "met" if not missed else "missed: " + ", ".join(missed)
        rows.append([*row, floor["bound"], number(floor.get("floor_ms")), percent(floor["share"]), verdict])
    return markdown(rows)


def summary(record: Mapping[str, Any]) -> str:
    """The machine, the model, load and memory, in a few lines."""
    machine, about = record["machine"], record["inferx"]
    memory, quantised = about["memory"], about["quantised"]
    weights = ", ".join(f"{kind} ({count})" for kind, count in quantised["weights"].items())
    int8 = machine["int8_peak_gop_s"]
    size, allowed = mebibytes(memory["growth_without_kv"]), mebibytes(memory["growth_allowed"])
    whole, peak = mebibytes(memory["growth_at_end"]), mebibytes(memory["growth_peak"])
    lines = [
        f"{machine['cpu']}, {machine['instruction_set']}, {machine['threads']} threads: reads "
        f"{machine['read_bandwidth_gb_s']:.1f} GB/s, float32 {machine['float32_peak_gflop_s']:.0f} GFLOP/s, "
        f"int8 {number(int8)} GOP/s; {machine['date']}, commit {machine['commit']}",
        f"{record['model']}: weights {weights}; activations {quantised['activations']}; "
        f"KV cache {quantised['kv']}; medians of {record['rounds']} rounds",
        f"load to first token {number(about['load_s'], 2)} s, with imports "
        f"{number(about['load_with_imports_s'], 2)} s",
        f"resident memory that the engine adds to its imports ({mebibytes(memory['after_imports'])}): {size} "
        f"beside the KV pool, allowed {allowed} (1.25 × the file); {whole} with the pool, {peak} at its peak",
    ]
    return "\n".join(lines)
