"""The measurements beside the workloads: run, judge, print.  Each returns what goes into the record."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.cpu.plot import Line, Panel, svg
from benchmarks.cpu.spawn import run_child
from benchmarks.cpu.table import markdown, percent

Say = Callable[[str], None]
Order = dict[str, Any]


def scaling(order: Order, args: argparse.Namespace, say: Say) -> dict[str, Any]:
    """A step's time over the grid, the plot, and the cliffs."""
    from benchmarks.cpu import scaling as measured

    result = run_child(
        {
            **order,
            "task": "scaling",
            "batches": measured.BATCHES,
            "contexts": measured.CONTEXTS,
            "tokens": args.tokens,
        },
        args.timeout,
    )
    cells = [measured.Cell(**cell) for cell in result["cells"]]
    found = measured.cliffs(cells)
    say(scaling_table(cells))
    bad = [segment for segment in found if segment["cliff"]]
    worst = max((s["excess"] for s in found), default=0.0)
    say(f"\n{len(found)} segments, dearest {worst:.2f} × what came before; cliffs: {len(bad)}")
    for s in bad:
        other = "tokens of context" if s["along"] == "batch" else "streams"
        say(f"  {s['along']} {s['low']} -> {s['high']} at {s['at']} {other}: {s['excess']:.2f} ×")
    if args.plot is not None:
        args.plot.write_text(scaling_plot(cells))
        say(f"curves: {args.plot}")
    return {"cells": result["cells"], "segments": found, "cliffs": len(bad), "quantised": result["quantised"]}


def scaling_table(cells: Sequence[Any]) -> str:
    """Milliseconds of a step: streams down, context across."""
    contexts = sorted({c.context for c in cells})
    time_of = {(c.batch, c.context): c.seconds for c in cells}
    rows = [["streams", *(f"{context:,} tokens" for context in contexts)]]
    for batch in sorted({c.batch for c in cells}):
        times = [time_of.get((batch, context)) for context in contexts]
        rows.append([str(batch), *("" if t is None else f"{t * 1e3:.1f} ms" for t in times)])
    return markdown(rows)


def scaling_plot(cells: Sequence[Any]) -> str:
    from benchmarks.cpu.scaling import lines

    drawn: dict[str, list[Line]] = {"batch": [], "context": []}
    for along, at, points in lines(cells):
        name = f"{at:,} tokens" if along == "batch" else f"{at} stream" + ("s" if at > 1 else "")
        drawn[along].append(Line(name, tuple((x, seconds * 1e3) for x, seconds, _ in points)))
    return svg(
        [
            Panel("decode step against streams", "streams", "milliseconds", tuple(drawn["batch"])),
            Panel(
                "decode step against context", "tokens of context", "milliseconds", tuple(drawn["context"])
            ),
        ]
    )


def overhead(order: Order, args: argparse.Namespace, say: Say) -> dict[str, Any]:
    """Parts of a step in one process, and the step through the engine process."""
    from benchmarks.cpu.overhead import MOST_SHARE

    order = {**order, "streams": args.streams, "prompt": 64, "new_tokens": 96}
    order["options"] = {"max_num_seqs": max(64, args.streams), **order["options"]}
    inside = run_child({**order, "task": "overhead"}, args.timeout)
    outside = run_child({**order, "task": "async_overhead"}, args.timeout)
    say(overhead_table(inside))
    say(
        f"\nall but the model: {inside['share']:.1%} of a step of {inside['streams']} streams (by medians "
        f"{inside['median_share']:.1%}; at most {MOST_SHARE:.0%} wanted); "
        f"the timers add {inside['timer_s'] * 1e6:.0f} us\n"
        f"through the engine process: {outside['step_s'] * 1e3:.2f} ms a step; processor time of the front "
        f"end {outside['front_end_s'] * 1e3:.2f} ms ({outside['front_end_s'] / outside['step_s']:.1%}), "
        f"of the engine {outside['engine_s'] * 1e3:.2f} ms"
    )
    return {"in_process": inside, "async_engine": outside}


def overhead_table(result: dict[str, Any]) -> str:
    rows = [["part", "mean us", "median us", "share"]]
    for part, mean in result["mean_s"].items():
        median = result["median_s"][part]
        share = mean / result["step_s"]
        rows.append([part, f"{mean * 1e6:,.0f}", f"{median * 1e6:,.0f}", f"{share:.2%}"])
    whole = sum(result["median_s"].values())
    rows.append(["step", f"{result['step_s'] * 1e6:,.0f}", f"{whole * 1e6:,.0f}", percent(1.0)])
    return markdown(rows)


def perplexity(order: Order, args: argparse.Namespace, say: Say) -> dict[str, Any]:
    """Of the engine as it is, and in float32."""
    from benchmarks.cpu.perplexity import MOST_DIFFERENCE, reference_options
    from benchmarks.cpu.quantised import engine_option

    plain = reference_options()
    reference = run_child(
        {**order, "task": "perplexity", "options": {**order["options"], **plain}}, args.timeout
    )
    own = run_child({**order, "task": "perplexity"}, args.timeout)
    difference = own["perplexity"] / reference["perplexity"] - 1
    for name, result in (("float32", reference), ("as it runs", own)):
        kinds = result["quantised"]
        say(
            f"{name:11} perplexity {result['perplexity']:.4f} over {result['tokens']:,} tokens "
            f"(activations {kinds['activations']}, KV cache {kinds['kv']})"
        )
    say(f"difference {difference:+.3%}; at most {MOST_DIFFERENCE:.1%} wanted")
    if not engine_option("activations"):
        say("the option activations is not available in this version: its activations are float32 anyway")
    return {
        "float32": reference,
        "default": own,
        "relative_difference": difference,
        "activations_option": engine_option("activations"),
    }
