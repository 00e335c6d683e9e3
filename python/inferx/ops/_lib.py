"""How ops find their kernels, and how they are known to torch.

Eager code calls a compiled module directly (about half a microsecond); the definitions made here are
what ``torch.compile`` and ``torch.ops.inferx.*`` see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from inferx import _C

_C.simd_target()  # a wrong INFERX_CPU_ISA is an error at import, not at the first op

_library = torch.library.Library("inferx", "DEF")

_cpu_kernels: Any = _C
_cuda_kernels: Any = getattr(_C, "cuda", None)


def kernels_for(tensor: Any) -> Any:
    """The module whose functions run on the device of ``tensor``.

    RuntimeError for a CUDA tensor when inferx was built without CUDA.  What is no tensor at all gets the
    CPU's, whose checks say so.
    """
    if getattr(tensor, "is_cuda", False):
        if _cuda_kernels is None:
            raise RuntimeError(
                f"a tensor is on {tensor.device}, but this build of inferx has no CUDA kernels: "
                "build it where nvcc is, or with INFERX_CUDA=ON"
            )
        return _cuda_kernels
    return _cpu_kernels


def on_device(tensor: Any) -> bool:
    """Whether ops on ``tensor`` run the CUDA kernels: on a GPU, or under ``use_kernels``."""
    return kernels_for(tensor) is not _C


@contextmanager
def use_kernels(module: Any) -> Iterator[None]:
    """For tests: CPU tensors run on the kernels of ``module``, a build for the SIMT executor."""
    global _cpu_kernels
    before, _cpu_kernels = _cpu_kernels, module
    try:
        yield
    finally:
        _cpu_kernels = before


def check_tensor(op: str, name: str, value: Any, min_ndim: int = 0) -> None:
    """For what Python looks at before a compiled module does."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{op}: {name}: expected a torch.Tensor, got {type(value)}")
    if value.dim() < min_ndim:
        raise ValueError(
            f"{op}: {name}: expected at least {min_ndim} dimension{'s' if min_ndim > 1 else ''}, "
            f"got shape {list(value.shape)}"
        )


def check_number(op: str, name: str, value: Any, last: int, what: str = "") -> None:
    """For numbers from 1 on that sizes depend on, before Python allocates by them."""
    if type(value) is not int and not isinstance(value, torch.SymInt):
        raise TypeError(f"{op}: {name}: expected an int, got {value!r}")
    if value < 1 or value > last:
        raise ValueError(f"{op}: {name}: expected 1 to {last}{what}, got {value}")


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
    schema: str, fake: Callable[..., Any] = _no_result, cpu: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Defines ``torch.ops.inferx.NAME`` by its schema and returns its overload.

    The functions NAME of the compiled modules run for CPU and CUDA tensors and check their own arguments;
    ``fake`` computes the results' shapes only, and is not needed for ops that return nothing.  ``cpu`` stands
    in for a function that the CPU's module does not have.
    """
    name = schema[: schema.index("(")]
    _library.define(schema)

    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        kernel = cpu if cpu is not None and _cpu_kernels is _C else getattr(_cpu_kernels, name)
        return kernel(*args, **kwargs)

    def on_cuda(*args: Any, **kwargs: Any) -> Any:
        return getattr(_cuda_kernels, name)(*args, **kwargs)

    _library.impl(name, on_cpu, "CPU")
    if _cuda_kernels is not None:
        _library.impl(name, on_cuda, "CUDA")
    torch.library.register_fake(f"inferx::{name}", fake, lib=_library)
    overload: Callable[..., Any] = getattr(torch.ops.inferx, name).default
    return overload
