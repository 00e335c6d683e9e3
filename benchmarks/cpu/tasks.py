"""The measurements that run in a child process.  Each takes the parent's order and returns plain data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.cpu import overhead, perplexity, scaling
from benchmarks.cpu.session import Session
from benchmarks.cpu.workloads import SHARED_PREFIX, make_workloads

from inferx import ops

Order = dict[str, Any]


def run_workload(order: Order) -> dict[str, Any]:
    """One workload once, behind a warm-up of other tokens."""
    session = Session(order)
    session.warm_up()
    return session.measure(order["workload"]) | session.record()


def run_prefix_parts(order: Order) -> dict[str, Any]:
    """W6 in its parts: the shared prefix alone, then all requests, which find it in the prefix cache."""
    session = Session(order)
    session.warm_up()
    requests = make_workloads()["W6"]
    prefix = session.run([(list(requests[0].prompt[:SHARED_PREFIX]), 1)])
    rest = session.run([(list(r.prompt), r.new_tokens) for r in requests])
    return {"parts": [prefix.wall, rest.wall]} | session.record()


def run_limits(order: Order) -> dict[str, Any]:
    """What this machine can do with so many threads."""
    from benchmarks.kernels.probes import Probes

    target = ops.build_info()["simd_target"]
    probes = Probes(target)
    threads = order["threads"]
    return {
        "bandwidth": probes.read_bandwidth(threads),
        "float32": probes.flops(threads),
        "int8": probes.int8_operations(threads),
        "simd_target": target,
        "build": ops.build_info(),
    }


TASKS: dict[str, Callable[[Order], dict[str, Any]]] = {
    "workload": run_workload,
    "prefix_parts": run_prefix_parts,
    "limits": run_limits,
    "scaling": scaling.run,
    "overhead": overhead.run,
    "async_overhead": overhead.run_async,
    "perplexity": perplexity.run,
}
