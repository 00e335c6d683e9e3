"""The cases of each family of ops."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.kernels.case import Cases, Target
from benchmarks.kernels.ops import attention, cache, linear, mla, moe, routing, rows, sampling

FAMILIES: dict[str, Callable[[Target], Cases]] = {
    "attention": attention.cases,
    "cache": cache.cases,
    "linear": linear.cases,
    "mla": mla.cases,
    "moe": moe.cases,
    "routing": routing.cases,
    "rows": rows.cases,
    "sampling": sampling.cases,
}
