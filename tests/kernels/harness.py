"""Where the tests of the device ops run: the CUDA kernels' real source, under the SIMT executor or on a GPU.

    def test_rms_norm(device: Device) -> None:
        x = device.put(torch.randn(3, 64))
        with device:
            out = ops.rms_norm(x, ...)

The ``device`` fixture (conftest.py) runs each test on every build there is: "simt-fast", "simt-checked", and
"cuda" where there is a GPU.  Under the executor, tensors are CPU tensors, and each test runs in several
orders of warps and blocks (``device.schedules``).
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import torch

from inferx.ops._lib import use_kernels

BUILD = Path(os.environ.get("INFERX_SIMT_BUILD", Path(__file__).parents[2] / "build" / "simt"))
ORDERS = {"forward": 0, "reverse": 1, "random": 2}


@cache
def simt_module(name: str) -> Any:
    """inferx_simt_fast or inferx_simt_checked, from BUILD (``make simt`` builds them)."""
    files = list(BUILD.glob(f"{name}.*so"))
    if not files:
        raise FileNotFoundError(f"{BUILD / name}: not built; run `make simt`")
    spec = importlib.util.spec_from_file_location(name, files[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Device:
    """One build of the kernels.  As a context, it is what ops on its tensors run on."""

    def __init__(self, name: str, *, order: str = "forward", seed: int = 1, preempt: int = 0) -> None:
        self.name = name
        self.is_simt = name.startswith("simt")
        self.torch_device = torch.device("cpu" if self.is_simt else "cuda")
        self.module = simt_module(f"inferx_{name.replace('-', '_')}") if self.is_simt else None
        self._options = {"order": ORDERS[order], "seed": seed, "preempt": preempt}
        self._stack = ExitStack()

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device with the same strides."""
        return tensor.clone() if self.is_simt else tensor.to(self.torch_device)

    def __enter__(self) -> Device:
        if self.module is not None:
            self.module.configure(self._options)
            self._stack.enter_context(use_kernels(self.module))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
