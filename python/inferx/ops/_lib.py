"""How ops are known to torch.

Eager code calls the compiled module directly (about half a microsecond); the definitions made here are
what ``torch.compile`` and ``torch.ops.inferx.*`` see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from inferx import _C

_C.simd_target()  # a wrong INFERX_CPU_ISA is an error at import, not at the first op

_library = torch.library.Library("inferx", "DEF")

is_compiling = torch.compiler.is_compiling


def _no_result(*args: Any, **kwargs: Any) -> None:
    """Fake implementation of an op that only writes into its arguments."""


def register(
    schema: str, kernel: Callable[..., Any], fake: Callable[..., Any] = _no_result
) -> Callable[..., Any]:
    """Defines ``torch.ops.inferx.NAME`` by its schema and returns its overload.

    ``kernel`` runs for CPU and for CUDA tensors and checks its own arguments; ``fake`` computes the
    results' shapes only, and is not needed for ops that return nothing.
    """
    name = schema[: schema.index("(")]
    _library.define(schema)
    for key in ("CPU", "CUDA"):
        _library.impl(name, kernel, key)
    torch.library.register_fake(f"inferx::{name}", fake, lib=_library)
    overload: Callable[..., Any] = getattr(torch.ops.inferx, name).default
    return overload
