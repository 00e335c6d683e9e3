"""inferx on this CPU, beside other engines and beside what the machine allows.

    python -m benchmarks.cpu --json results.json                  # the six workloads, five rounds
    python -m benchmarks.cpu --peer llama.cpp="driver {workload} {model} {threads}" --rounds 5
    python -m benchmarks.cpu --workloads W1 W4 --rounds 1         # a quick look
    python -m benchmarks.cpu --scaling --plot scaling.svg
    python -m benchmarks.cpu --overhead
    python -m benchmarks.cpu --perplexity

benchmarks/cpu/README.md says what each figure means, and how a peer is driven.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.cpu import report
from benchmarks.cpu.contest import Contest
from benchmarks.cpu.machine import Machine
from benchmarks.cpu.spawn import ChildError, Peer
from benchmarks.cpu.table import summary, workload_table
from benchmarks.cpu.workloads import NAMES

DEFAULT_MODEL = "smollm2-135m-instruct"


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="benchmarks.cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument(
        "--model", default=DEFAULT_MODEL, help="as for inferx: a name, a folder, a .gguf file"
    )
    result.add_argument("--threads", type=int, default=2)
    result.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        type=option,
        help="of our engine (EngineArgs); may be repeated",
    )
    result.add_argument("--workloads", nargs="+", choices=NAMES, default=list(NAMES), metavar="W")
    result.add_argument("--rounds", type=int, default=5, help="medians are of so many runs (default 5)")
    result.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        type=peer,
        help="another engine, run in turn with ours; may be repeated",
    )
    result.add_argument(
        "--quiet",
        type=float,
        default=8.0,
        help="seconds to wait before a run until others leave the CPU alone",
    )
    result.add_argument("--timeout", type=float, default=1800.0, help="seconds that one run may take")
    result.add_argument("--scaling", action="store_true", help="a step's time against streams and context")
    result.add_argument("--tokens", type=int, default=131_072, help="--scaling: most tokens in the KV cache")
    result.add_argument("--plot", type=Path, help="--scaling: write the curves to this SVG file")
    result.add_argument("--overhead", action="store_true", help="what a step takes beside the model")
    result.add_argument("--streams", type=int, default=64, help="--overhead: how many")
    result.add_argument("--perplexity", action="store_true", help="of a fixed text, beside float32")
    result.add_argument("--json", type=Path, help="write everything to this file")
    return result


def option(text: str) -> tuple[str, Any]:
    """NAME=VALUE; the value is JSON where it can be read so, otherwise text."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def peer(text: str) -> Peer:
    try:
        return Peer.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    arguments = parser()
    args = arguments.parse_args()
    if args.rounds < 1 or args.threads < 1:
        arguments.error("--rounds and --threads must be at least 1")
    if Path(args.model).exists():
        args.model = str(Path(args.model).resolve())  # children run elsewhere
    machine = Machine(args.threads)
    record: dict[str, Any] = {"model": Path(args.model).name, "options": dict(args.option)}
    order = {"model": args.model, "threads": args.threads, "options": dict(args.option)}
    try:
        machine.probe()
        special = [name for name in ("scaling", "overhead", "perplexity") if getattr(args, name)]
        for name in special:
            record[name] = getattr(report, name)(order, args, say)
        if not special:
            _workloads(args, machine, record)
    except ChildError as error:
        print(error, file=sys.stderr)
        return 1
    record["machine"] = machine.describe()
    if "workloads" in record:
        say(
            "\n" + summary(record) + "\n\n" + workload_table(record["workloads"], [p.name for p in args.peer])
        )
    if args.json is not None:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    for error in record.get("errors", []):
        print(error, file=sys.stderr)
    return 0 if record.get("complete", True) else 1


def _workloads(args: argparse.Namespace, machine: Machine, record: dict[str, Any]) -> None:
    contest = Contest(
        args.model,
        args.threads,
        args.workloads,
        args.peer,
        dict(args.option),
        quiet_seconds=args.quiet,
        timeout=args.timeout,
    )
    for number in range(args.rounds):
        contest.round(number, say)
        machine.probe()
    contest.check_answers()
    if not contest.results(machine.limits):
        raise ChildError(contest.errors[0])
    record["rounds"] = args.rounds
    record["workloads"] = contest.results(machine.limits)
    record["inferx"] = contest.about()
    record["peer_commands"] = {p.name: p.command for p in args.peer}
    record["errors"] = contest.errors
    record["complete"] = contest.complete


if __name__ == "__main__":
    sys.exit(main())
