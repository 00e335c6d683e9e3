"""What serving over HTTP costs, beside ``LLM`` on the same work and the same machine.

    python -m benchmarks.http [--streams 64] [--prompt-tokens 64] [--new-tokens 128] [--threads 2]
                              [--rounds 5] [--whole] [--json FILE]

Both sides stay loaded and take turns; each round has prompts of its own, and the answers of one more round
are compared.  The overhead of a round is the time over HTTP, from the first connection to the last byte,
over the time of ``LLM.generate``, less one.  The client runs on the same cores: its processor time is listed
by itself, and is part of the overhead.  "CPU" is the same comparison in processor seconds of all processes,
which others on the machine disturb less than the time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.cpu.machine import commit, cpu_name
from benchmarks.cpu.quiet import CpuTimes, wait_until_quiet
from benchmarks.http.processes import Server, Worker, cpu_seconds
from benchmarks.http.work import make_order

from inferx.engine.args import DEFAULT_MODEL

HEAD = (
    f"{'round':>5} {'LLM s':>8} {'HTTP s':>8} {'overhead':>9} {'CPU':>7} "
    f"{'LLM cpu':>8} {'engine':>8} {'server':>8} {'client':>8} {'us/token':>9} {'others':>7}"
)


class Sides:
    """Both engines, and the client of one."""

    def __init__(self, args: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.args = args
        self.offline = Worker("benchmarks.http.offline", args.model, str(args.threads))
        stack.callback(self.offline.close)
        self.server = Server(args.model, "--threads", str(args.threads), *args.serve_option)
        stack.callback(self.server.close)
        self.client = Worker("benchmarks.http.client", str(self.server.port))
        stack.callback(self.client.close)

    def order(self, number: int, **more: Any) -> dict[str, Any]:
        args = self.args
        order = make_order(number, args.streams, args.prompt_tokens, args.new_tokens)
        return {**order, "stream": not args.whole, **more}

    def warm_up(self) -> None:
        """One round whose answers must be the same."""
        order = self.order(0, texts=True)
        if self.offline.ask(order)["texts"] != self.client.ask(order)["texts"]:
            raise RuntimeError("HTTP and LLM gave different answers")

    def round(self, number: int) -> dict[str, Any]:
        """Which side goes first changes from round to round."""
        order = self.order(number)
        before = CpuTimes.now()
        sides = [lambda: ("llm", self.offline.ask(order)), lambda: ("http", self._over_http(order))]
        results = dict(side() for side in (sides if number % 2 else reversed(sides)))
        llm, http = results["llm"], results["http"]
        others = CpuTimes.now().others_since(before)
        used = llm["cpu_seconds"] + http["engine"] + http["server"] + http["client"]
        others -= used / max(CpuTimes.now().wall - before.wall, 1e-3)
        if llm["tokens"] != http["tokens"]:
            raise RuntimeError(f"LLM made {llm['tokens']} tokens, HTTP {http['tokens']}")
        return {
            "llm_seconds": llm["seconds"],
            "llm_cpu_seconds": llm["cpu_seconds"],
            "http_seconds": http["seconds"],
            "engine_cpu_seconds": http["engine"],
            "server_cpu_seconds": http["server"],
            "client_cpu_seconds": http["client"],
            "tokens": http["tokens"],
            "chunks": http["chunks"],
            "first_chunk_seconds": http["first"],
            "others_cores": max(0.0, others),
            "overhead": http["seconds"] / llm["seconds"] - 1,
            "cpu_overhead": (http["engine"] + http["server"] + http["client"]) / llm["cpu_seconds"] - 1,
        }

    def _over_http(self, order: dict[str, Any]) -> dict[str, Any]:
        pids = {"engine": self.server.engine_pid, "server": self.server.pid}
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        answer = self.client.ask(order)
        used = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
        return {**answer, **used, "client": answer["cpu_seconds"]}


def line(number: int, row: dict[str, Any]) -> str:
    per_token = 1e6 * row["server_cpu_seconds"] / row["tokens"]
    used = [row[f"{who}_cpu_seconds"] for who in ("llm", "engine", "server", "client")]
    return (
        f"{number:5} {row['llm_seconds']:8.2f} {row['http_seconds']:8.2f} "
        f"{row['overhead']:9.1%} {row['cpu_overhead']:7.1%} "
        f"{' '.join(f'{seconds:8.2f}' for seconds in used)} {per_token:9.1f} {row['others_cores']:7.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--whole", action="store_true", help="answers that are not streamed")
    parser.add_argument(
        "--wait-quiet", type=float, default=0.0, help="seconds to wait for a quiet machine, a round"
    )
    parser.add_argument("--serve-option", action="append", default=[], help="passed on to inferx serve")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        sides = Sides(args, stack)
        sides.warm_up()
        print(HEAD, flush=True)
        rows = []
        for number in range(1, args.rounds + 1):
            if args.wait_quiet:
                wait_until_quiet(args.wait_quiet)
            rows.append(sides.round(number))
            print(line(number, rows[-1]), flush=True)
    median = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    print(f"median overhead {median['overhead']:.1%}, of processor time {median['cpu_overhead']:.1%}")
    if args.json:
        record = {
            "what": "HTTP beside LLM",
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "commit": commit(),
            "cpu": cpu_name(),
            "python": platform.python_version(),
            "arguments": {k: v for k, v in vars(args).items() if k != "json"},
            "median": median,
            "rounds": rows,
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
