"""Kernel microbenchmarks: time, rate, and the share of what this machine can do, op by op.

    python -m benchmarks.kernels                              # this machine's CPU
    python -m benchmarks.kernels --device cuda --json results.json
    python -m benchmarks.kernels --ops attention rows --quick

The limit of a case is the larger of its bytes over the measured bandwidth and its operations over the
measured peak, both taken in this run, before and after.  Inputs change from call to call until more memory
has gone by than the caches hold.  Times are medians; "±" is half the interquartile range.  A figure more than
5 % above the limit is an error: then one of the two was measured wrongly.  Peers (torch, FlashInfer,
flash-attn, vLLM) are timed where they are installed: "x" is their time over ours.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from benchmarks.kernels.case import Case, Target
from benchmarks.kernels.machine import CpuMachine, CudaMachine, Limits
from benchmarks.kernels.ops import FAMILIES

from inferx import ops

GB = 1e9
TOLERANCE = 0.05  # of the limits, on a machine that others use too
HEAD = f"{'op':24} {'shape':52} {'us':>10} {'±':>4} {'GB/s':>8} {'TFLOP/s':>8} {'limit':>6}  peers"


def measure(case: Case, machine: CpuMachine | CudaMachine, samples: int) -> dict[str, Any]:
    """One line of the results; ``error`` where the case did not run."""
    row: dict[str, Any] = {"op": case.op, "shape": case.shape}
    try:
        work = case.make()
        row["seconds"], row["spread"] = machine.time(work.calls, samples)
    except Exception as error:  # a case that fails must not take the others with it
        row["error"] = f"{type(error).__name__}: {error}"
        return row
    row |= {
        "bytes": work.bytes,
        "operations": work.operations,
        "tensor_cores": work.tensor_cores,
        "peers": {},
    }
    for name, calls in work.peers.items():
        try:
            row["peers"][name] = machine.time(calls, samples)[0]
        except Exception as error:
            row["peers"][name] = f"{type(error).__name__}: {error}"
    return row


def line(row: dict[str, Any], limits: Limits) -> str:
    head = f"{row['op']:24} {row['shape']:52} "
    if "error" in row:
        return head + row["error"]
    took = row["seconds"]
    peers = ", ".join(
        f"{name} {other / took:.2f}x" if isinstance(other, float) else f"{name}: {other[:40]}"
        for name, other in row["peers"].items()
    )
    return (
        f"{head}{took * 1e6:10.1f} {row['spread']:4.0%} {row['bytes'] / took / GB:8.1f} "
        f"{row['operations'] / took / 1e12:8.2f} {share(row, limits):6.1%}  {peers}"
    )


def share(row: dict[str, Any], limits: Limits) -> float:
    return limits.seconds(row["bytes"], row["operations"], row["tensor_cores"]) / row["seconds"]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.kernels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--ops", nargs="+", choices=sorted(FAMILIES), default=sorted(FAMILIES))
    parser.add_argument("--filter", default="", help="only cases whose op or shape contains this")
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--threads", type=int, default=ops.get_num_threads())
    parser.add_argument(
        "--memory", type=float, default=0, help="GB that inputs may take (default: 2, on a GPU half of it)"
    )
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    args = parser.parse_args()
    if args.samples < 5:
        parser.error("--samples must be at least 5: medians of fewer say little")

    torch.manual_seed(0)
    device = torch.device(args.device)
    machine: CpuMachine | CudaMachine
    if device.type == "cuda":
        machine = CudaMachine(device)
        memory = torch.cuda.mem_get_info(device)[0] // 2
    else:
        machine = CpuMachine(args.threads)
        memory = 2 << 30
    target = Target(device, 256 << 20, int(args.memory * GB) or memory, args.quick)

    limits = machine.limits()
    print(f"{machine.name}: {limits.bandwidth / GB:.1f} GB/s, {limits.flops / 1e12:.2f} TFLOP/s f32, "
          f"{limits.tensor_flops / 1e12:.1f} TFLOP/s bf16\n{HEAD}", flush=True)  # fmt: skip
    rows = []
    for name in args.ops:
        for case in FAMILIES[name](target):
            if args.filter not in f"{case.op} {case.shape}" or case.memory > target.memory_bytes:
                continue
            rows.append(measure(case, machine, args.samples))
            print(line(rows[-1], limits), flush=True)
            if target.is_cuda:
                torch.cuda.empty_cache()
    limits = limits.best_of(machine.limits())  # the machine may have been busy at the beginning
    for row in rows:
        if "error" not in row:
            row["share_of_limit"] = share(row, limits)
            if limits.spec_bandwidth:
                row["share_of_spec_bandwidth"] = row["bytes"] / row["seconds"] / limits.spec_bandwidth
    if args.json:
        about = {"machine": machine.name, "torch": torch.__version__, "python": platform.python_version(),
                 "build": ops.build_info(), "limits": vars(limits)}  # fmt: skip
        args.json.write_text(json.dumps({"about": about, "results": rows}, indent=1) + "\n")
    above = [row for row in rows if row.get("share_of_limit", 0) > 1 + TOLERANCE]
    for row in above:
        print(f"not credible, faster than the measured limit: {row['op']} {row['shape']}")
    failed = [row for row in rows if "error" in row]
    print(f"{len(rows)} cases, {len(failed)} failed, {len(above)} above the limit")
    return 1 if failed or above else 0


if __name__ == "__main__":
    sys.exit(main())
