"""Where the tests of the device ops run: the CUDA kernels' real source, under the SIMT executor or on a GPU.

    def test_rms_norm(device: Device) -> None:
        x = device.put(torch.randn(3, 64))
        with device:
            out = ops.rms_norm(x, ...)

The ``device`` fixture (conftest.py) runs each test on every build there is: "simt-fast", "simt-checked", and
"cuda" where there is a GPU.  Under the executor, tensors are CPU tensors, and each test runs in several
orders of warps and blocks.

Both kinds of memory that a test gives to a kernel lie in front of a guard page there, so that even the fast
build faults on what lies behind: what ``put`` makes, and what ops allocate for their results inside ``with
device``.  The latter, and the gaps between the rows of the former, start as NaN (integers: -1).
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from inferx.ops._lib import use_kernels

BUILD = Path(os.environ.get("INFERX_SIMT_BUILD", Path(__file__).parents[2] / "build" / "simt"))
ORDERS = {"forward": 0, "reverse": 1, "random": 2}


@cache
def simt_module(name: str) -> Any:
    """A module of the executor's build, such as inferx_simt_fast, from BUILD (``make simt`` builds them)."""
    files = list(BUILD.glob(f"{name}.*so"))
    if not files:
        raise FileNotFoundError(f"{BUILD / name}: not built; run `make simt`")
    spec = importlib.util.spec_from_file_location(name, files[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def guarded_empty(
    module: Any, shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor of NaN whose last element ends at a guard page (16-byte rounding apart)."""
    if 0 in shape:
        return torch.empty_strided(shape, strides, dtype=dtype)
    elements = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    buffer = module.GuardedBuffer(elements * dtype.itemsize)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).as_strided(shape, strides)


def guarded_copy(module: Any, tensor: torch.Tensor) -> torch.Tensor:
    copy = guarded_empty(module, tensor.shape, tensor.stride(), tensor.dtype)
    if 0 in tensor.stride():  # expanded: each element once
        once = [
            slice(0, 1) if stride == 0 and size > 1 else slice(None)
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        ]
        copy[tuple(once)].copy_(tensor[tuple(once)])
    else:
        copy.copy_(tensor)
    return copy


class _GuardedResults(TorchFunctionMode):
    """torch.empty and its relatives give guarded memory."""

    ALLOCATORS = frozenset(
        {
            torch.empty,
            torch.empty_like,
            torch.empty_strided,
            torch.Tensor.new_empty,
            torch.Tensor.new_empty_strided,
        }
    )

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._module = module

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in self.ALLOCATORS or type(result) is not torch.Tensor or result.device.type != "cpu":
            return result
        return guarded_empty(self._module, result.shape, result.stride(), result.dtype)


class Device:
    """One build of the kernels.  As a context, it is what ops on its tensors run on."""

    def __init__(
        self, name: str, *, order: str = "forward", seed: int = 1, preempt: int = 0, num_sms: int = 3
    ) -> None:
        self.name = name
        self.is_simt = name.startswith("simt")
        self.torch_device = torch.device("cpu" if self.is_simt else "cuda")
        self.module = simt_module(f"inferx_{name.replace('-', '_')}") if self.is_simt else None
        self._options = {"order": ORDERS[order], "seed": seed, "preempt": preempt, "num_sms": num_sms}
        self._stack = ExitStack()

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device with the same strides."""
        return guarded_copy(self.module, tensor) if self.is_simt else tensor.to(self.torch_device)

    def __enter__(self) -> Device:
        if self.module is not None:
            self.module.configure(self._options)
            self._stack.enter_context(use_kernels(self.module))
            self._stack.enter_context(_GuardedResults(self.module))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
