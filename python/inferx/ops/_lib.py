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


def is_compiling() -> bool:
    """Whether somebody records the ops: torch.compile, make_fx and other dispatch modes, torch.jit.trace."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


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
